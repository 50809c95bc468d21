"""What thousands of rounds left behind, on the coordinator's side and on a device's."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from profiling.fleet.watch import Sample, slope

SETTLED = 200  # rounds in which what is taken once may be taken; a tenth of a shorter run
MOST_GROWTH_BYTES = 5 << 10  # of the coordinator's resident set in a round, after these
FEWEST_JUDGED = 1000  # rounds; over fewer a page or two decide


@dataclass(frozen=True)
class Side:
    """One process over the rounds.

    Attributes:
        name: `coordinator`, or a device's.
        samples: Looks at it and at its folder, once a second.
        rss_slope_bytes: Growth of its resident set per round, once the first rounds are over.
        disk_slope_bytes: The same of its folder; None with too few looks.
    """

    name: str
    samples: tuple[Sample, ...]
    rss_slope_bytes: float | None
    disk_slope_bytes: float | None

    @property
    def peak_rss_bytes(self) -> int:
        return max(one.rss_bytes for one in self.samples)

    @property
    def peak_disk_bytes(self) -> int:
        return max(one.disk_bytes for one in self.samples)

    @property
    def most_files(self) -> int:
        return max(one.open_files for one in self.samples)


@dataclass(frozen=True)
class SoakRun:
    """A soak; all figures measured.

    Attributes:
        rounds: Rounds that were taken.
        clients: Devices, all of them in every round.
        update_bytes: Size of an adapter's numbers, and so of an update.
        began_s: When each round's training reached the first device, and when the run was over.
        sides: The coordinator, then the devices.
        load_1m: Load average before.
    """

    rounds: int
    clients: int
    update_bytes: int
    began_s: tuple[float, ...]
    sides: tuple[Side, ...]
    load_1m: float

    @property
    def round_s(self) -> float:
        return median(later - earlier for earlier, later in pairwise(self.began_s))

    @property
    def is_level(self) -> bool:
        """Whether the coordinator does not grow; of a short run nobody can say."""
        grown = self.sides[0].rss_slope_bytes
        return self.rounds < FEWEST_JUDGED or grown is None or grown <= MOST_GROWTH_BYTES


def settled(rounds: int) -> int:
    return min(SETTLED, rounds // 10)


def side(name: str, samples: Sequence[Sample], began_s: Sequence[float]) -> Side:
    """What looks at a process come to.

    Args:
        name: Whose.
        samples: The looks.
        began_s: When each round began, and when the last one ended.
    """
    first = settled(len(began_s) - 1)
    rss, disk = (slope(samples, figure, began_s, first) for figure in ("rss_bytes", "disk_bytes"))
    return Side(name, tuple(samples), rss, disk)
