"""Tables of training benchmarks and gradient comparisons; the grid of predicted and measured peaks.

Each case of the grid is a fresh process that takes two steps, and is written to `grid.jsonl` as
soon as it is done. A case already done on this machine with these libraries is not run again, so an
interrupted grid can be resumed.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from smidgen.edge_client.tables import Column, Table, seconds, share, size, sizes
from smidgen.profiling.benchmarks.exactness import PlanError
from smidgen.profiling.benchmarks.training import PEERS, Benchmark, Settings
from smidgen.profiling.benchmarks.training_run import TrainingRun, from_record, to_record
from smidgen.profiling.instruments.child import DONE
from smidgen.profiling.instruments.environment import (
    BenchmarkError,
    find_base,
    is_shape,
    this_machine,
    versions,
)
from smidgen.profiling.records.record import (
    RecordError,
    append,
    last_part,
    new_session,
    read_records,
)

QUIET = 0.3  # load per core above which a time says little
BUSY = (
    "other processes were at work: times say little, processor time with --threads 1 more; peak "
    "memory is not affected"
)


def named(engine: str) -> str:
    return engine if engine in PEERS else f"smidgen {engine}"


def machine_notes(machine: Mapping[str, Any], loads: Sequence[float]) -> list[str]:
    """Where it was measured, and a warning where that was busy.

    Args:
        machine: As `instruments.environment.Machine` has it in JSON.
        loads: Load averages before each process, in order.
    """
    sets = ", ".join(machine.get("instruction_sets", ())) or "instruction sets not known"
    notes = [
        f"machine: {machine['processor'] or machine['machine']} ({sets}), {machine['cores']} "
        f"cores, {size(machine['memory_bytes'])}, kernel {machine['kernel']}"
    ]
    if loads:  # those of later processes hold what our own have just computed
        notes.append(f"load average before: {loads[0]:.1f}")
        if loads[0] > QUIET * machine["cores"]:
            notes.append(f"warning: {BUSY}")
    return notes


def plan_text(plan: Mapping[str, Any] | None, batch: int) -> str:
    if plan is None:
        return "-"
    return (
        f"{plan['dtype']}, {plan['micro_batch']} of {batch} rows, top {plan['depth']} layers, "
        f"{len(plan['recompute'])} recomputed"
    )


def train_table(runs: Sequence[TrainingRun]) -> Table:
    """One row per process, ours first."""
    ours = runs[0]
    texts = ours.settings.get("texts", "").rpartition(" ")[0]
    of = f"texts of {texts} of at most" if texts else "x"
    peaks = ("predicted_peak_bytes", "peak_rss_bytes", "peak_anon_bytes")
    told = sizes([getattr(run, name) for run in runs for name in peaks])
    columns = [Column("engine", "word"), *(Column(name) for name in ("predicted", "RSS", "anon"))]
    if is_capped := any(run.cgroup_limit_bytes for run in runs):
        columns.append(Column("cgroup", optional=1))
    columns += [Column("step"), Column("min to max", optional=2), Column("processor", optional=1)]
    rows = []
    for place, run in enumerate(runs):
        step = run.step_s if run.is_done else None
        rows.append(
            [
                named(run.engine),
                *told[place * len(peaks) : (place + 1) * len(peaks)],
                *([_group(run)] if is_capped else []),
                seconds(step["median"]) if step else "-",
                f"{seconds(step['min'])} to {seconds(step['max'])}" if step else "-",
                seconds(median(run.steps_processor_s)) if run.steps_processor_s else "-",
            ]
        )
    return Table(
        columns,
        rows,
        f"{ours.base}, {ours.bits} bits, {ours.batch} {of} {ours.tokens} tokens, {ours.adapter}",
        [
            "predicted: peak, estimated before the start; RSS: the process's peak of resident "
            "memory, by the kernel (VmHWM); anon: its part that belongs to no file, sampled every "
            f"{1000 * ours.sample_interval_s:.0f} ms; step: median of {len(ours.steps_s)} steps; "
            "processor: its processor time, of all threads"
        ],
    )


def _group(run: TrainingRun) -> str:
    if not run.cgroup_limit_bytes:
        return "-"
    return " of ".join(sizes([run.cgroup_peak_bytes, run.cgroup_limit_bytes]))


def ratio_notes(ours: str, found: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """How we stand beside each peer, one line each.

    Args:
        ours: Our engine's name.
        found: Ratios of ours to each peer.
    """
    names = {
        "step_s": "step time",
        "step_processor_s": "processor time",
        "peak_rss": "peak RSS",
        "peak_anon": "peak anonymous",
    }
    return [
        f"{named(ours)} : {peer} = "
        + ", ".join(f"{_times(ratio[name])} {text}" for name, text in names.items())
        for peer, ratio in found.items()
    ]


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def train_notes(runs: Sequence[TrainingRun]) -> list[str]:
    """What a reader of the table must know, one line each."""
    ours = runs[0]
    notes = [f"plan: {plan_text(ours.plan, ours.batch)}"]
    if ours.stepped_down_from:
        before = plan_text(ours.stepped_down_from, ours.batch)
        notes.append(f"it began with {before}, and stepped down")
    if ours.prediction_error is not None:
        so_long = ", of texts of all tokens" if ours.settings.get("texts") else ""
        error = f"{100 * ours.prediction_error:+.1f} % of the measured one"
        notes.append(f"predicted peak{so_long}: {error}")
    if ours.gemm_share is not None and ours.gemm_flops_per_s is not None:
        rate = f"{ours.gemm_flops_per_s / 1e9:.0f} GFLOP/s"
        notes.append(f"rate: {share(ours.gemm_share)} of the {rate} of a plain float32 product")
    if ours.device_peak is not None:
        reserved, allocated = (
            ours.device_peak[f"{name}_bytes"] for name in ("reserved", "allocated")
        )
        notes.append(
            f"card: {size(reserved)} reserved by torch, {size(allocated)} of it in tensors "
            "(measured); the prediction is of what is reserved"
        )
    if ours.cap["asked_bytes"]:
        notes.append(f"cap: {ours.cap['note']}")
        notes.append(f"before it: {ours.cap['page_cache']}")
    notes += [f"{named(run.engine)}: {run.outcome}" for run in runs if not run.is_done]
    notes += [
        f"{named(run.engine)}: no gradient reached {', '.join(run.untrained[:3])}"
        + (f" and {len(run.untrained) - 3} more" if len(run.untrained) > 3 else "")
        for run in runs
        if run.untrained
    ]
    losses = [f"{named(run.engine)} {run.losses[0]:.4f}" for run in runs if run.losses]
    if losses:
        notes.append(f"first loss: {', '.join(losses)}")
    order = " -> ".join(named(run.engine) for run in runs)
    notes.append(f"order: {order}, each in a fresh process")
    return notes + machine_notes(ours.machine, [run.machine["load_1m"] for run in runs])


def grid_table(cases: Sequence[TrainingRun]) -> Table:
    """Predicted against measured, one row per case."""
    peaks = sizes(
        [
            one
            for case in cases
            for one in (case.predicted_peak_bytes, case.measured_peak_bytes or None)
        ]
    )
    rows = []
    for place, case in enumerate(cases):
        base, bits, batch = (case.settings[name] for name in ("base", "bits", "batch"))
        rows.append(
            [
                last_part(str(base)),
                str(bits),
                str(batch),
                *peaks[2 * place : 2 * place + 2],
                "-" if case.prediction_error is None else f"{100 * case.prediction_error:+.1f} %",
                seconds(case.step_s["median"] if case.step_s else None),
                case.outcome if case.prediction_error is None else plan_text(case.plan, batch),
            ]
        )
    columns = [
        Column("base", "word"),
        *(Column(name) for name in ("bits", "batch", "predicted", "measured", "error")),
        Column("step", optional=1),
        Column("plan", "text", optional=2),
    ]
    is_on_card = any(case.device_peak for case in cases)
    kind = "of the card" if is_on_card else "RSS"
    notes = ["batch: texts in a step; error: of the prediction, relative to the measured peak"]
    if cases:
        loads = [case.machine["load_1m"] for case in cases]
        notes += machine_notes(cases[0].machine, loads)
    return Table(columns, rows, f"predicted and measured peak {kind}", notes, "grid.jsonl")


def exactness_table(errors: Sequence[PlanError]) -> Table:
    """One row per plan."""
    names = ("rows", "recomputed", "depth", "loss", "worst", "missing")
    columns = [
        *(Column(name) for name in names),
        Column("exact", "word"),
        Column("worst tensor", "text", optional=1),
    ]
    rows = [
        [
            str(error.plan["micro_batch"]),
            str(len(error.plan["recompute"])),
            str(error.plan["depth"]),
            f"{error.loss_error:.1e}",
            f"{error.worst_error:.1e}",
            str(len(error.zero_tensors)),
            "yes" if error.is_exact else "no",
            error.worst_tensor.removeprefix("base_model.model."),
        ]
        for error in errors
    ]
    notes = [
        "a plan: rows of the batch computed at once, layers recomputed, and the top layers that "
        "adapters are trained on; loss, worst: relative errors of the loss and of the worst "
        "tensor's gradient, ours in float32, the reference in float64; missing: tensors that no "
        "gradient reached"
    ]
    return Table(columns, rows, "gradients beside plain PyTorch + PEFT", notes)


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
        case = known.get(_key(settings.kept(), _refused(settings, "")))
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
        settings=settings.kept(),
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
