"""What a piece of work cost a device, as its report says it: measured on the device, all of it.

Null says "not available here": the kernel or the board does not tell. It never stands as 0.
"""

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal

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
        """What was received, likewise."""
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
        plain = Cost()
        return replace(self, **{name: getattr(plain, name) for name in self.wrong()})

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
