"""Parts of a device's report: pseudo-label confidences, costs of the work, and failure codes.

`Confidences` counts, for each label, a device's unlabelled texts in 40 bins of equal width in
log-odds, from a confidence of 0.5 on; nothing else of these texts leaves the device. From all
devices' counts `smidgen.coordinator.rounds.scoring` sets a threshold per label. A threshold is
always the start of a bin, so both sides agree exactly on what is above it.

    held = counted(30, [0, 1], [0.93, 0.4], 2)  # 30 texts, two of them read; the second unsure
    held.sure([as_bin(0.9), as_bin(0.9)])  # 1

Costs are measured on the device; null, never 0, where the kernel or board does not report one.
Failures are sent as codes, because an exception's message may quote a device's text or path; it
stays in the device's log. `revoked` is the coordinator's own, for its journal, and refused from a
device.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal

from smidgen.edge_client.errors import demand

BINS = 40
WIDTH = 0.3  # of a bin, in log-odds
STARTS = tuple(1.0 / (1.0 + math.exp(-WIDTH * index)) for index in range(BINS))


@dataclass(frozen=True)
class Confidences:
    """How sure a device is of the texts it has read.

    Attributes:
        texts: Unlabelled texts it holds, read or not.
        counts: Counts by label, then by bin: texts of that most probable label and confidence; a
            text whose confidence is below 0.5 is in no bin.
    """

    texts: int
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        rows = [(self.texts,), *self.counts]
        is_whole = all(len(row) == BINS for row in self.counts)
        demand(is_whole, f"confidences: {BINS} counts per label expected")
        is_counted = all(0 <= count < 2**53 for row in rows for count in row)
        demand(is_counted, "confidences: a count is not between 0 and 2^53")

    def sure(self, thresholds: Sequence[float]) -> int:
        """Texts at least as sure as their label's threshold, which is the start of a bin."""
        rows = zip(self.counts, thresholds, strict=True)
        return sum(sum(row[bin_above(least) :]) for row, least in rows)


def bin_above(confidence: float) -> int:
    """The lowest bin of which all confidences are at least this; they may all be lower."""
    return bisect_left(STARTS, confidence)


def bin_of(confidence: float) -> int:
    """The bin of a confidence; -1 below 0.5 or NaN. Bins grow with it, the last has no end."""
    return bisect_right(STARTS, confidence) - 1 if confidence >= STARTS[0] else -1


def as_bin(confidence: float) -> float:
    """A threshold moved up to the start of a bin, so that counts say exactly what is above it.

    Only one beyond the start of the last bin moves down, to it.
    """
    return STARTS[min(BINS - 1, bin_above(confidence))]


def counted(
    texts: int, labels: Sequence[int], confidences: Sequence[float], num_labels: int
) -> Confidences:
    """Count what a device has read.

    Args:
        texts: Unlabelled texts it holds.
        labels: Most probable label of each text read.
        confidences: Its calibrated probability.
        num_labels: Labels of the task.
    """
    counts = [[0] * BINS for _ in range(num_labels)]
    for label, confidence in zip(labels, confidences, strict=True):
        if (found := bin_of(confidence)) >= 0:
            counts[label][found] += 1
    return Confidences(texts, tuple(map(tuple, counts)))


Phase = Literal[
    "wait",
    "download",
    "load",
    "tokenize",
    "cache",
    "label",
    "train",
    "evaluate",
    "encode",
    "upload",
]
EnergySource = Literal["ina3221", "rapl", "battery"]
MOST = 2**53  # a whole number that every JSON reader keeps


@dataclass(frozen=True)
class Cost:
    """What one piece of work cost; the report that carries it is not included.

    Attributes:
        phases_s: Wall-clock seconds by phase; a phase inside another counts for itself alone, so
            they add up to the work's time but for the device's own bookkeeping.
        cpu_s: Processor seconds of all the client's threads by phase, counted alike.
        peak_rss_bytes: The process's highest resident set during the whole piece of work, the
            opening of the engine included (VmHWM).
        is_peak_of_work: Whether the kernel let that peak begin with this work; if not, it is the
            process's since it began.
        peak_phase: The phase in which the peak was reached; null where none raised it.
        peak_anon_bytes: Highest private memory that belongs to no file, sampled ten times a second.
        peak_file_bytes: Highest resident part of mapped files, sampled likewise.
        pss_bytes: Proportional set size after the work was done: shared pages count in part.
        minor_faults: Pages that had to be mapped, without the disk.
        major_faults: Pages that had to be read from disk.
        disk_read_bytes: Bytes read from disk for the process.
        payload_up_bytes: Bodies sent.
        payload_down_bytes: Bodies received.
        tcp_up_bytes: Bytes that the other side acknowledged, by the kernel (TCP_INFO): headers, TLS
            and what was sent again after a lost connection are in it.
        tcp_down_bytes: Bytes received, by the kernel.
        tcp_retransmitted_bytes: Bytes that the kernel sent more than once.
        requests: HTTP requests answered.
        connections: TCP connections opened for this work; 0 where one that was open did, above 1
            where it was lost in between.
        energy_j: Joules during the work, by a power monitor of the board, the processor's own
            counter, or the battery.
        energy_source: Which of them.
        hottest_c: Highest temperature of the board's sensors when the work began or ended, in
            degrees Celsius.
        is_throttled: Whether the processor was slowed down by heat or power during the work.
        power_mode: The board's power mode (nvpmodel's number).
        accelerator_peak_bytes: Highest memory that the library had allocated on a GPU since the
            engine was opened.
    """

    phases_s: dict[Phase, float] = field(default_factory=dict)
    cpu_s: dict[Phase, float] = field(default_factory=dict)
    peak_rss_bytes: int | None = None
    is_peak_of_work: bool = True
    peak_phase: Phase | None = None
    peak_anon_bytes: int | None = None
    peak_file_bytes: int | None = None
    pss_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    disk_read_bytes: int | None = None
    payload_up_bytes: int = 0
    payload_down_bytes: int = 0
    tcp_up_bytes: int | None = None
    tcp_down_bytes: int | None = None
    tcp_retransmitted_bytes: int | None = None
    requests: int = 0
    connections: int = 0
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    hottest_c: float | None = None
    is_throttled: bool | None = None
    power_mode: int | None = None
    accelerator_peak_bytes: int | None = None

    @property
    def up_bytes(self) -> int:
        """What was sent: by the kernel's count, or the bodies alone where it keeps none."""
        return self.payload_up_bytes if self.tcp_up_bytes is None else self.tcp_up_bytes

    @property
    def down_bytes(self) -> int:
        return self.payload_down_bytes if self.tcp_down_bytes is None else self.tcp_down_bytes

    def wrong(self) -> list[str]:
        """Names of figures that cannot be."""
        found = []
        for part in fields(self):
            value = getattr(self, part.name)
            values = value.values() if isinstance(value, dict) else [value]
            if not all(_can_be(part.name, one) for one in values):
                found.append(part.name)
        return found

    def sound(self) -> "Cost":
        """Without the figures that cannot be: they are not available."""
        return replace(self, **{name: getattr(Cost(), name) for name in self.wrong()})

    def delivered(self, later: "Cost") -> "Cost":
        """The cost of work that a later life of the client has delivered.

        Args:
            later: What delivering cost.
        """
        upload: Phase = "upload"
        spent = [
            {**of, upload: of.get(upload, 0.0) + more.get(upload, 0.0)}
            for of, more in ((self.phases_s, later.phases_s), (self.cpu_s, later.cpu_s))
        ]
        counts: dict[str, Any] = {
            name: _sum(getattr(self, name), getattr(later, name)) for name in MOVED
        }
        return replace(self, phases_s=spent[0], cpu_s=spent[1], **counts)


MOVED = (
    *("payload_up_bytes", "payload_down_bytes", "requests", "connections"),
    *("tcp_up_bytes", "tcp_down_bytes", "tcp_retransmitted_bytes"),
)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _can_be(name: str, value: float | str | None) -> bool:
    if value is None or isinstance(value, str):
        return True
    least = -273.15 if name == "hottest_c" else 0
    return isfinite(value) and least <= value < MOST


Failure = Literal[
    "texts",
    "task",
    "base",
    "fetching",
    "adapter",
    "budget",
    "memory",
    "training",
    "engine",
    "disk",
    "transfer",
    "refused",
    "too_large",
    "limits",
    "revoked",
    "internal",
]
# What a run's owner reads.
SAID: dict[Failure, str] = {
    "texts": "the device's texts cannot be used for this task",
    "task": "the task does not fit the base",
    "base": "the device holds another base",
    "fetching": "the device is fetching the run's base, and joins when it has it",
    "adapter": "the adapter does not fit the base",
    "budget": "no plan fits the device's memory budget",
    "memory": "the device ran out of memory",
    "training": "training gave no usable update: no texts, or a loss that is not finite",
    "engine": "the device's engine or one of its libraries is missing",
    "disk": "a file could not be read or written",
    "transfer": "what the coordinator sent could not be used, or the update did not get through",
    "refused": "the coordinator refused the device's answer",
    "too_large": "something between device and coordinator refused the update as too large: raise "
    "the proxy's limit on bodies (nginx: client_max_body_size; Caddy: request_body max_size)",
    "limits": "the work is more than the device's owner lets it do",
    "revoked": "the coordinator's operator revoked the device",
    "internal": "an error that smidgen does not know; please report it",
}
