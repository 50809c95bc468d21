"""A training run as a record: what `smidgen profile train --out` keeps, one for each process."""

from profiling.benchmarks.training import PEERS, Settings
from profiling.benchmarks.training_run import TrainingRun
from profiling.instruments.conditions import conditions
from profiling.records.record import Figure, Plain, Record

TRAIN_FILE = "train.jsonl"


def to_record(run: TrainingRun, settings: Settings, session: str) -> Record:
    """A run as it is kept.

    Args:
        run: What came out.
        settings: What was asked for.
        session: Names the command; the runs of one session had the machine in turn.
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
        "cap_bytes": run.cap["asked_bytes"],
        "threads": run.threads,
        "device": run.device,
        "isa": settings.isa,
    }
    told = run.to_json()
    where = conditions(
        run.base_id, run.plan, run.seed, settings.isa, told.pop("machine"), told.pop("versions")
    )
    return Record(
        kind="train",
        subject=subject,
        figures=dict(_figures(run)),
        conditions=where,
        outcome=run.outcome,
        session=session,
        is_peer=is_peer,
        details=told,
    )


def _figures(run: TrainingRun) -> list[tuple[str, Figure]]:
    found = []
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
