"""A training run as a record: what `profile train --out` and `grid` keep, one for each process."""

import msgspec

from profiling.benchmarks.training import PEERS, Settings
from profiling.benchmarks.training_run import TrainingRun
from profiling.instruments.conditions import conditions
from profiling.records.record import Figure, Kind, Plain, Record, RecordError

TRAIN_FILE = "train.jsonl"


def to_record(run: TrainingRun, settings: Settings, session: str, kind: Kind = "train") -> Record:
    """A run as it is kept.

    Args:
        run: What came out.
        settings: What was asked for.
        session: Names the command; the runs of one session had the machine in turn.
        kind: `grid` for a case of a grid, whose subject is all that was asked for.
    """
    is_peer = run.engine in PEERS
    subject: dict[str, Plain] = {
        "base": run.base,
        "engine": run.engine,
        "bits": run.bits,
        "batch": run.batch,
        "tokens": run.tokens,
        "adapter": run.adapter,
        "budget": "" if is_peer else settings.memory_budget,
        "cap_bytes": run.cap.get("asked_bytes"),
        "threads": run.threads,
        "device": run.device,
        "isa": settings.isa,
    }
    told = run.to_json()
    where = conditions(
        run.base_id, run.plan, run.seed, settings.isa, told.pop("machine"), told.pop("versions")
    )
    return Record(
        kind=kind,
        subject=run.settings if kind == "grid" else subject,
        figures=dict(_figures(run)),
        conditions=where,
        outcome=run.outcome,
        session=session,
        is_peer=is_peer,
        details=told,
    )


def from_record(record: Record) -> TrainingRun:
    """The run that a record was made of.

    Raises:
        RecordError: Its details are not those of a run.
    """
    where = record.conditions
    machine = where.machine | {"load_1m": where.load_1m}
    try:
        told = record.details | {"machine": machine, "versions": where.versions}
        return msgspec.convert(told, TrainingRun)
    except msgspec.ValidationError as error:
        raise RecordError(f"the record of {record.name} is not a run's: {error}") from error


def _figures(run: TrainingRun) -> list[tuple[str, Figure]]:
    found = []
    if run.predicted_peak_bytes:
        predicted = (float(run.predicted_peak_bytes),)
        told = Figure(predicted, "planner's formulas", source="estimated")
        found.append(("predicted_peak_bytes", told))
    if run.peak_rss_bytes:
        found.append(("peak_rss_bytes", Figure((float(run.peak_rss_bytes),), "VmHWM")))
    if run.peak_anon_bytes:
        anon = Figure((float(run.peak_anon_bytes),), "RssAnon, sampled")
        found.append(("peak_anon_bytes", anon))
    for name in ("reserved_bytes", "allocated_bytes"):
        if run.device_peak is not None:
            peak = Figure((float(run.device_peak[name]),), "torch's allocator")
            found.append((f"card_{name}", peak))
    if run.steps_s:
        found.append(("step_s", Figure(tuple(run.steps_s), "clock")))
    return found
