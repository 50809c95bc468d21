"""What devices met, and how long requests took: every one is kept, the slowest too."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ROUTES = ("connect", "enrol", "membership", "poll", "heard", "adapter", "update", "report")


@dataclass
class Met:
    """What the devices of one process met together.

    Attributes:
        seconds: Of each request that was answered as it should be, by route.
        answered: Requests that were answered as they should be, polls that brought work included.
        errors: How often what went wrong, by route and kind.
        held_back: Answers that said to come again later (429 and 503).
        accepted: Updates that count.
        refused: Updates that came too late to count.
        heard_s: When devices heard of each step, by round and kind; `time.monotonic()`.
        enrolled: Devices that enrolled.
        began_s: When the first of them began to; `time.monotonic()`.
        enrolled_s: When the last of them had; 0 where some have not.
        over_s: When the first heard that the run is over; 0 if none did.
        is_right: Whether the finished adapter is what the answers add up to; None without one.
        cpu_s: Processor time of this process.
        lag_s: How late it was itself, sample by sample.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    answered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    held_back: int = 0
    accepted: int = 0
    refused: int = 0
    heard_s: dict[str, list[float]] = field(default_factory=dict)
    enrolled: int = 0
    began_s: float = math.inf
    enrolled_s: float = 0.0
    over_s: float = 0.0
    is_right: bool | None = None
    cpu_s: float = 0.0
    lag_s: list[float] = field(default_factory=list)

    def took(self, route: str, seconds: float) -> None:
        self.seconds.setdefault(route, []).append(round(seconds, 6))


@dataclass(frozen=True)
class Latency:
    """Requests of one route.

    Attributes:
        count: How many.
        p50_s: Their median.
        p99_s: Seconds that 99 % of them did not exceed.
        max_s: The slowest.
    """

    count: int
    p50_s: float
    p99_s: float
    max_s: float


def latency(seconds: Sequence[float]) -> Latency:
    ordered = sorted(seconds)
    return Latency(len(ordered), quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least of ordered values that a share of them does not exceed.

    Args:
        ordered: Ascending; one or more.
        share: Above 0 to 1.
    """
    place = -(-round(share * 1e6) * len(ordered) // 1_000_000) - 1
    return ordered[max(0, place)]


def together(several: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, Latency]:
    """Latency by route over several processes, in the order of `ROUTES`."""
    joined: dict[str, list[float]] = defaultdict(list)
    for one in several:
        for route, seconds in one.items():
            joined[route] += seconds
    return {route: latency(joined[route]) for route in ROUTES if joined[route]}
