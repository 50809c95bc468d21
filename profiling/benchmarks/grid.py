"""Predicted peaks against measured ones, over shapes, bits and batches; a long benchmark.

Each case is a fresh process that takes two steps. A case is written to `grid.jsonl` as soon as it
is done. One that was done on this machine with these libraries is not run again, so an interrupted
grid goes on.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from profiling.benchmarks.training import Benchmark, Settings
from profiling.benchmarks.training_run import measured_peak
from profiling.instruments.bases import BenchmarkError, find_base, is_shape
from profiling.instruments.child import DONE
from profiling.instruments.conditions import conditions
from profiling.instruments.machine import this_machine, versions
from profiling.records.file import append, read_records
from profiling.records.record import Figure, Record, RecordError, new_session

SHAPES = ("bert-base", "roberta-base", "roberta-large", "albert-base", "xlm-roberta-base")
GRID_BITS, BATCHES = (4, 8, 16), (1, 4, 8)
CLOSE = 0.15  # of the measured peak
WARMUP, STEPS = 1, 1


@dataclass(frozen=True)
class Case:
    """One point of the grid with what was found there.

    Attributes:
        settings: What was run, as JSON holds it; two cases of equal settings are the same.
        outcome: `done`, or how it failed.
        plan: What was chosen, or None.
        predicted_peak_bytes: Estimated before, or None.
        peak_rss_bytes: Measured.
        peak_anon_bytes: Measured from outside.
        step_s: The last step's seconds, or None.
        predicted_parts: Where the predicted bytes go, or None.
        machine: Where it ran.
        versions: Versions of Python and the libraries.
        device_peak: The CUDA device's, measured by torch; None without one.
        base_id: SHA-256 of the base; empty of random weights, whose name and seed say all of it.
    """

    settings: dict[str, Any]
    outcome: str
    plan: dict[str, Any] | None
    predicted_peak_bytes: int | None
    peak_rss_bytes: int
    peak_anon_bytes: int
    step_s: float | None
    predicted_parts: dict[str, int] | None
    machine: dict[str, Any]
    versions: dict[str, str | None]
    device_peak: dict[str, Any] | None = None
    base_id: str = ""

    @property
    def measured_peak_bytes(self) -> int:
        """What the prediction is of, measured; 0 where nothing ran."""
        return measured_peak(self.peak_rss_bytes, self.device_peak)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured; None where one of them is not known."""
        if self.outcome != "done" or self.predicted_peak_bytes is None:
            return None
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1

    @property
    def is_close(self) -> bool:
        """Whether the prediction is within 15 % of the measured peak."""
        return self.error is not None and abs(self.error) <= CLOSE


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


def run_grid(
    cases: Sequence[Settings], path: Path, listen: Callable[[int, Settings], None]
) -> Iterator[Case]:
    """Run what is not in the file yet; every case of the grid comes out, in order.

    Args:
        cases: The grid.
        path: The `grid.jsonl` to write.
        listen: Called with a case's number before it is run.

    Raises:
        RecordError: The file holds something else.
    """
    session = new_session()
    done = [case for case in read_cases(path) if case.outcome == DONE]
    known = {_key(case.settings, case.base_id, case.machine, case.versions): case for case in done}
    for number, settings in enumerate(cases):
        base_id = _base_id(settings)
        case = known.get(_key(asdict(settings), base_id, asdict(this_machine()), versions()))
        if case is None:
            listen(number, settings)
            case = _run(settings, base_id)
            append(path, [to_record(case, session)])
        yield case


def _key(
    settings: dict[str, Any],
    base_id: str,
    machine: dict[str, Any],
    libraries: dict[str, str | None],
) -> str:
    where = {name: value for name, value in machine.items() if name != "load_1m"}
    return json.dumps([settings, base_id, where, libraries], sort_keys=True)


def _base_id(settings: Settings) -> str:
    """SHA-256 of a base on disk; empty of a random one, and where it cannot be had."""
    if settings.is_random:
        return ""
    try:
        return find_base(settings.base, False, settings.bits, settings.seed).base_id
    except BenchmarkError:
        return ""


def _run(settings: Settings, base_id: str) -> Case:
    try:
        run = Benchmark(settings).ours()
    except BenchmarkError as error:  # a budget too small, say: a result like any other
        return Case(
            settings=asdict(settings),
            outcome=str(error),
            plan=None,
            predicted_peak_bytes=None,
            peak_rss_bytes=0,
            peak_anon_bytes=0,
            step_s=None,
            predicted_parts=None,
            machine=asdict(this_machine()),
            versions=versions(),
            base_id=base_id,
        )
    return Case(
        settings=asdict(settings),
        outcome=run.outcome,
        plan=run.plan,
        predicted_peak_bytes=run.predicted_peak_bytes,
        peak_rss_bytes=run.peak_rss_bytes,
        peak_anon_bytes=run.peak_anon_bytes,
        step_s=run.step_s["median"] if run.step_s else None,
        predicted_parts=run.predicted_parts,
        machine=run.machine,
        versions=run.versions,
        device_peak=run.device_peak,
        base_id=base_id,
    )


def to_record(case: Case, session: str) -> Record:
    """A case as it is kept.

    Args:
        case: What came out.
        session: Names the command that wrote it.
    """
    told = asdict(case)
    settings = told.pop("settings")
    machine, libraries, base_id = (told.pop(name) for name in ("machine", "versions", "base_id"))
    where = conditions(base_id, case.plan, settings["seed"], settings["isa"], machine, libraries)
    return Record(
        "grid", settings, dict(_figures(case)), where, case.outcome, session, details=told
    )


def _figures(case: Case) -> Iterator[tuple[str, Figure]]:
    if case.predicted_peak_bytes:
        predicted = (float(case.predicted_peak_bytes),)
        yield "predicted_peak_bytes", Figure(predicted, "planner's formulas", source="estimated")
    if case.peak_rss_bytes:
        yield "peak_rss_bytes", Figure((float(case.peak_rss_bytes),), "VmHWM")
    if case.peak_anon_bytes:
        yield "peak_anon_bytes", Figure((float(case.peak_anon_bytes),), "RssAnon, sampled")
    if case.step_s:
        yield "step_s", Figure((case.step_s,), "clock")


def from_record(record: Record) -> Case:
    """The case that a record was made of.

    Raises:
        RecordError: Its details are not those of a case.
    """
    where = record.conditions
    told = record.details | {
        "settings": record.subject,
        "machine": where.machine | {"load_1m": where.load_1m},
        "versions": where.versions,
        "base_id": where.base_id,
    }
    try:
        return msgspec.convert(told, Case)
    except msgspec.ValidationError as error:
        raise RecordError(f"the record of {record.name} is not a grid's: {error}") from error


def read_cases(path: Path) -> list[Case]:
    """Cases that were done; a last line cut short by a crash is not counted.

    Raises:
        RecordError: The file holds something else.
    """
    if not path.is_file():
        return []
    found = [record for record in read_records(path).records if record.kind == "grid"]
    try:
        return [from_record(record) for record in found]
    except RecordError as error:
        raise RecordError(f"{path}: {error}; move the file away") from error
