"""Measured result of one training process, its comparison with another, and its record."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

import msgspec

from smidgen.edge_client.engine.opening import ENGINES
from smidgen.profiling.instruments.child import DONE
from smidgen.profiling.instruments.environment import conditions
from smidgen.profiling.records.record import Figure, Kind, Plain, Record, RecordError


@dataclass(frozen=True)
class TrainingRun:
    """One process's training, as measured; bytes and seconds.

    Attributes:
        engine: Ours, or a peer's name.
        base: The base, as it was named.
        bits: Bits of our base's weights; the peer's checkpoint says so itself.
        batch: Texts in a step.
        tokens: Tokens of a text.
        adapter: The adapter in full; `all weights` of the peer `full`.
        outcome: `done`, `killed by the memory cap`, or how it failed.
        plan: Ours at the end; None of peers.
        stepped_down_from: The plan it began with, where that had to be left.
        predicted_peak_bytes: Peak of the plan it began with, before anything was loaded; estimated.
        peak_rss_bytes: VmHWM over the process's life; measured by the kernel.
        peak_anon_bytes: Highest RssAnon seen from outside, over its life.
        steps_peak_rss_bytes: VmHWM from the first step on; None where it cannot be reset.
        steps_peak_anon_bytes: Highest RssAnon from the first step on.
        sample_interval_s: Pause between two readings of RssAnon.
        cgroup_limit_bytes: Hard cap, or None where none was enforced.
        cgroup_peak_bytes: The group's highest charge, page cache included.
        cap: What enforced it, and what was done to the page cache before.
        step_s: Median, smallest, largest and interquartile range of the steps that count.
        steps_s: Each of them.
        steps_processor_s: Processor time of each, of all threads: steadier on a machine in use.
        losses: Loss of every step, warm-up included.
        warmup: Steps that do not count.
        untrained: Trained tensors that no gradient reached in two steps and more; empty, or
            something is wrong.
        trained_tensors: How many are trained.
        predicted_parts: Where the predicted bytes go.
        step_flops: Operations of one step's matrix products by our plan, by formula; None of peers.
        gemm_flops_per_s: Rate of a plain float32 product here, measured right before with numpy.
        budget_bytes: What our engine was allowed.
        threads: Asked for; None for what the libraries take.
        seed: Root seed of texts and weights.
        base_id: The base's identity.
        machine: Where it ran.
        versions: Versions of Python and the libraries it ran with.
        settings: What was asked for, as `Settings` has it.
        device: What our engine computed on, `cpu` or `cuda`.
        device_peak: The CUDA device's peak as `DevicePeak` has it; None without one.
    """

    engine: str
    base: str
    bits: int
    batch: int
    tokens: int
    adapter: str
    outcome: str
    base_id: str
    seed: int
    machine: dict[str, Any] = field(repr=False)
    versions: dict[str, str | None] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    plan: dict[str, Any] | None = None
    stepped_down_from: dict[str, Any] | None = None
    predicted_peak_bytes: int | None = None
    peak_rss_bytes: int = 0
    peak_anon_bytes: int = 0
    steps_peak_rss_bytes: int | None = None
    steps_peak_anon_bytes: int = 0
    sample_interval_s: float = 0.0
    cgroup_limit_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    cap: dict[str, Any] = field(default_factory=dict)
    step_s: dict[str, float] | None = None
    steps_s: list[float] = field(default_factory=list)
    steps_processor_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    warmup: int = 0
    untrained: list[str] = field(default_factory=list)
    trained_tensors: int | None = None
    predicted_parts: dict[str, int] | None = None
    step_flops: float | None = None
    gemm_flops_per_s: float | None = None
    budget_bytes: int | None = None
    threads: int | None = None
    device: str = "cpu"
    device_peak: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        return self.outcome == DONE

    @property
    def measured_peak_bytes(self) -> int:
        """What the prediction is of, measured; 0 where nothing ran."""
        return measured_peak(self.peak_rss_bytes, self.device_peak)

    @property
    def prediction_error(self) -> float | None:
        if self.predicted_peak_bytes is None or not self.is_done:
            return None
        return self.predicted_peak_bytes / self.measured_peak_bytes - 1

    @property
    def gemm_share(self) -> float | None:
        if not (self.step_flops and self.step_s and self.gemm_flops_per_s):
            return None
        return self.step_flops / self.step_s["median"] / self.gemm_flops_per_s

    def to_json(self) -> dict[str, Any]:
        more = {"prediction_error": self.prediction_error, "gemm_share": self.gemm_share}
        return asdict(self) | more


def measured_peak(rss_bytes: int, device_peak: Mapping[str, Any] | None) -> int:
    """The peak that a prediction is of: of a card what torch reserved, else the process's.

    Args:
        rss_bytes: The process's.
        device_peak: The card's; where it is of unified memory both count.
    """
    if device_peak is None:
        return rss_bytes
    reserved: int = device_peak["reserved_bytes"]
    return reserved + (rss_bytes if device_peak["is_unified"] else 0)


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Median, smallest, largest, interquartile range; None of nothing."""
    if not seconds:
        return None
    quarters = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 3
    return {
        "median": median(seconds),
        "min": min(seconds),
        "max": max(seconds),
        "iqr": quarters[2] - quarters[0],
    }


def ratios(ours: TrainingRun, peers: Sequence[TrainingRun]) -> dict[str, dict[str, float | None]]:
    """Ours over each peer's: median step by the clock and by processor time, and peaks.

    Below one is better; None where a run did not end.
    """
    return {peer.engine: dict(_ratios(ours, peer)) for peer in peers}


def _ratios(ours: TrainingRun, peer: TrainingRun) -> Iterator[tuple[str, float | None]]:
    both = ours.is_done and peer.is_done
    for name in ("steps_s", "steps_processor_s"):
        one, other = getattr(ours, name), getattr(peer, name)
        ratio = median(one) / median(other) if both and one and other else None
        yield name.replace("steps", "step"), ratio
    names = ("peak_rss_bytes", "steps_peak_rss_bytes", "peak_anon_bytes", "steps_peak_anon_bytes")
    for name in names:
        a, b = getattr(ours, name), getattr(peer, name)
        yield name.removesuffix("_bytes"), a / b if both and a and b else None


TRAIN_FILE = "train.jsonl"


def to_record(run: TrainingRun, session: str, kind: Kind = "train") -> Record:
    """A run as it is kept.

    Args:
        run: What came out.
        session: Names the command; the runs of one session had the machine in turn.
        kind: `grid` for a case of a grid, whose subject is all that was asked for.
    """
    is_peer = run.engine not in ENGINES
    subject: dict[str, Plain] = {
        "base": run.base,
        "engine": run.engine,
        "bits": run.bits,
        "batch": run.batch,
        "tokens": run.tokens,
        "adapter": run.adapter,
        "budget": "" if is_peer else run.settings["memory_budget"],
        "cap_bytes": run.cap.get("asked_bytes"),
        "threads": run.threads,
        "device": run.device,
        "isa": run.settings["isa"],
    }
    subject |= {name: run.settings[name] for name in ("texts",) if name in run.settings}
    told, isa = run.to_json(), run.settings["isa"]
    machine, libraries = told.pop("machine"), told.pop("versions")
    where = conditions(run.base_id, run.plan, run.seed, isa, machine, libraries)
    return Record(
        kind=kind,
        subject=run.settings if kind == "grid" else subject,
        figures=_figures(run),
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


def _figures(run: TrainingRun) -> dict[str, Figure]:
    card, how = run.device_peak or {}, "torch's allocator"
    rows: list[tuple[str, Sequence[float | None], str]] = [
        ("predicted_peak_bytes", [run.predicted_peak_bytes], "planner's formulas"),
        ("peak_rss_bytes", [run.peak_rss_bytes], "VmHWM"),
        ("peak_anon_bytes", [run.peak_anon_bytes], "RssAnon, sampled"),
        ("card_reserved_bytes", [card.get("reserved_bytes")], how),
        ("card_allocated_bytes", [card.get("allocated_bytes")], how),
        ("step_s", run.steps_s, "clock"),
        ("step_processor_s", run.steps_processor_s, "processor clock"),
    ]
    return {
        name: Figure(
            tuple(float(value) for value in values if value is not None),
            instrument,
            source="estimated" if name.startswith("predicted") else "measured",
        )
        for name, values, instrument in rows
        if any(values)
    }
