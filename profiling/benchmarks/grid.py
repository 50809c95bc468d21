"""Predicted against measured peaks, over shapes, bits and batches; a long benchmark.

Each case is a fresh process that takes two steps, and is written to `grid.jsonl` as soon as it is
done. A case already done on this machine with these libraries is not run again, so an interrupted
grid can be resumed.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from profiling.benchmarks.training import Benchmark, Settings
from profiling.benchmarks.training_run import TrainingRun, from_record, to_record
from profiling.instruments.bases import BenchmarkError, find_base, is_shape
from profiling.instruments.child import DONE
from profiling.instruments.machine import this_machine, versions
from profiling.records.record import RecordError, append, new_session, read_records

SHAPES = ("bert-base", "roberta-base", "roberta-large", "albert-base", "xlm-roberta-base")
GRID_BITS, BATCHES = (4, 8, 16), (1, 4, 8)
CLOSE = 0.15  # of the measured peak
WARMUP, STEPS = 1, 1


def grid(
    common: Settings,
    bases: Sequence[str] = SHAPES,
    bits: Sequence[int] = GRID_BITS,
    batches: Sequence[int] = BATCHES,
    sample: int | None = None,
) -> list[Settings]:
    """Every combination, one base after the other; or `sample` of them, drawn by the seed.

    Args:
        common: What all cases share.
        bases: Shapes for random weights, or bases on disk.
        bits: Bits of the weights.
        batches: Texts in a step.
        sample: How many cases to draw.

    Raises:
        BenchmarkError: A value is out of range.
    """
    fields = asdict(common) | {"warmup": WARMUP, "steps": STEPS}
    whole = [
        Settings(**fields | {"base": base, "is_random": is_shape(base), "bits": b, "batch": n})
        for base, b, n in product(bases, bits, batches)
    ]
    if sample is None:
        return whole
    if not 1 <= sample <= len(whole):
        raise BenchmarkError(f"--sample {sample}: the grid has 1 to {len(whole)} cases")
    chosen = random.Random(common.seed).sample(range(len(whole)), sample)
    return [whole[index] for index in sorted(chosen)]


def is_close(case: TrainingRun) -> bool:
    """Whether the prediction is within 15 % of the measured peak."""
    return case.prediction_error is not None and abs(case.prediction_error) <= CLOSE


def run_grid(
    cases: Sequence[Settings], path: Path, listen: Callable[[int, Settings], None]
) -> Iterator[TrainingRun]:
    """Run what is not in the file yet; every case of the grid comes out, in order.

    Args:
        cases: The grid.
        path: The `grid.jsonl` to write.
        listen: Called with a case's number before it is run.

    Raises:
        RecordError: The file holds something else.
    """
    session = new_session()
    known = {_key(case.settings, case): case for case in read_cases(path) if case.outcome == DONE}
    for number, settings in enumerate(cases):
        case = known.get(_key(asdict(settings), _refused(settings, "")))
        if case is None:
            listen(number, settings)
            try:
                case = Benchmark(settings).ours()
            except BenchmarkError as error:  # a budget too small, say: a result like any other
                case = _refused(settings, str(error))
            append(path, [to_record(case, session, "grid")])
        yield case


def _key(settings: dict[str, Any], case: TrainingRun) -> str:
    where = {name: value for name, value in case.machine.items() if name != "load_1m"}
    base_id = "" if settings["is_random"] else case.base_id  # its name and the seed say all of it
    return json.dumps([settings, base_id, where, case.versions], sort_keys=True)


def _refused(settings: Settings, outcome: str) -> TrainingRun:
    base_id = ""
    if not settings.is_random:
        with suppress(BenchmarkError):
            base_id = find_base(settings.base, False, settings.bits, settings.seed).base_id
    return TrainingRun(
        engine=settings.engine,
        base=settings.base,
        bits=settings.bits or 0,
        batch=settings.batch,
        tokens=settings.tokens,
        adapter=settings.trained,
        outcome=outcome,
        base_id=base_id,
        machine=asdict(this_machine()),
        versions=versions(),
        seed=settings.seed,
        settings=asdict(settings),
    )


def read_cases(path: Path) -> list[TrainingRun]:
    """Cases that were done; a last line cut short by a crash is not counted.

    Raises:
        RecordError: The file holds something else.
    """
    if not path.is_file():
        return []
    try:
        found = read_records(path).records
        return [from_record(record) for record in found if record.kind == "grid"]
    except RecordError as error:
        raise RecordError(f"{path}: {error}; move the file away") from error
