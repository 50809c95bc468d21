"""How long requests took, by route: every one is kept, so that the slowest is known too."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ROUTES = ("connect", "enrol", "membership", "poll", "heard", "adapter", "update", "report")


class Timings:
    """Seconds by route as they are measured.

    Attributes:
        seconds: Of each request that was answered as it should be, by route.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, route: str, seconds: float) -> None:
        """Keep one."""
        self.seconds[route].append(round(seconds, 6))

    def plain(self) -> dict[str, list[float]]:
        """The same for JSON."""
        return dict(self.seconds)


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
    """What several requests of a route come to; one or more."""
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
