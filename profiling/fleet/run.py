"""Fleet benchmark: a coordinator under light devices, sampled from outside, and its result.

With several serving processes the figures are their sum, beside the processor time of each and of
their store's servers.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from smidgen.profiling.instruments.sampler import Background

EVERY_S = 1.0


@dataclass(frozen=True)
class Sample:
    """One look at a coordinator.

    Attributes:
        at_s: When, by `time.monotonic()`.
        rss_bytes: Its resident set.
        cpu_s: Its processor time so far, user and system.
        open_files: File descriptors that it holds, sockets among them.
        disk_bytes: What its folder takes on disk, by the blocks of its files.
        shares_s: Processor time so far by process, where there are several to tell apart.
    """

    at_s: float
    rss_bytes: int
    cpu_s: float
    open_files: int
    disk_bytes: int
    shares_s: Mapping[str, float] = field(default_factory=dict)


class ProcessWatch(Background):
    """A thread that looks at a coordinator until the block ends.

    Args:
        pid: Its process; where others are below it, they serve.
        store: Folder of its store.
        servers: Processes that its store lies with, by name.

    Attributes:
        samples: In order of time.
    """

    def __init__(self, pid: int, store: Path, servers: Mapping[str, int]) -> None:
        super().__init__("watch")
        self._process, self._store = psutil.Process(pid), store
        self._servers = {name: psutil.Process(server) for name, server in servers.items()}
        self.samples: list[Sample] = []

    def _watch(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it ended: what was seen is seen
            while not self._is_over.is_set():
                self.samples.append(self._look())
                self._is_over.wait(EVERY_S)

    def _look(self) -> Sample:
        cpu_s, held, files, shares_s = 0.0, 0, 0, {}
        below = self._process.children()
        for number, process in enumerate([self._process, *below]):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                used_s = own_s(process)
                cpu_s, files = cpu_s + used_s, files + process.num_fds()
                held += process.memory_info().rss
                if number:
                    shares_s[f"coordinator {number}"] = used_s
        for name, server in self._servers.items():
            with suppress(psutil.Error):
                shares_s[name] = tree_s(server)
        disk = disk_bytes(self._store)
        return Sample(time.monotonic(), held, cpu_s, files, disk, shares_s)


def own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def tree_s(process: psutil.Process) -> float:
    """Of a server and those below it, with those that it has waited for."""
    times = process.cpu_times()
    total = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            total += own_s(child)
    return total


def disk_bytes(folder: Path) -> int:
    """What the files below a folder take on disk; one that goes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def slope(
    samples: Sequence[Sample], name: str, began_s: Sequence[float], first: int
) -> float | None:
    """How much a figure grows per round, by least squares over time told in rounds.

    Args:
        samples: In order of time.
        name: Field of `Sample`.
        began_s: When each round began, from round 1, and when the last one ended.
        first: Rounds that are over before it counts.

    Returns:
        The slope; None with fewer than two rounds to look at.
    """
    if len(began_s) < first + 3:
        return None
    inside = [one for one in samples if began_s[first] <= one.at_s <= began_s[-1]]
    if len(inside) < 3:
        return None
    at_round = np.interp([one.at_s for one in inside], began_s, range(len(began_s)))
    values = np.array([float(getattr(one, name)) for one in inside])
    from_mean = at_round - at_round.mean()
    return float((from_mean * values).sum() / (from_mean**2).sum())


def near(samples: Sequence[Sample], at_s: float) -> Sample:
    return next((one for one in reversed(samples) if one.at_s <= at_s), samples[0])


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


SETTLED = 5  # rounds after which memory and disk are to stand still
LATE = 10  # last rounds: a cohort of a fifth has reached 9 of 10 devices in as many


@dataclass(frozen=True)
class FleetRun:
    """One fleet over its rounds; all figures measured.

    Attributes:
        devices: Light devices, each with a key and a connection of its own.
        cohort: Most of them that train in a round, and that evaluate.
        rounds: Rounds asked for.
        update_bytes: Size of an adapter's numbers, and so of an update.
        processes: Of the coordinator that served.
        is_shared: Whether the store lay on PostgreSQL.
        is_tls: Whether they spoke TLS.
        outcome: `done`, or in one line how it ended.
        enrolled: Devices that enrolled.
        enrolling_s: Seconds from the first connection until the last device had enrolled.
        enrolling_cpu_s: The coordinator's processor time meanwhile.
        rounds_s: Seconds of each round, from its training to that of the next.
        latencies: Of requests, by route.
        errors: How often what went wrong.
        held_back: Answers that said to come again later.
        accepted: Updates that count.
        refused: Updates that came too late.
        cpu_s: The coordinator's processor time in the rounds, of all its processes.
        shares_s: The same by process, with the servers of its store; empty for one process alone.
        requests_per_s: Answered, from the first connection to the end of the run.
        rss_bytes: Its resident set before the first device, with all enrolled, and at the end.
        peak_rss_bytes: The highest sample.
        rss_slope_bytes: Growth of its resident set per round, after the fifth.
        late_rss_slope_bytes: The same of the last ten rounds: by then what every connection takes
            once is taken.
        disk_bytes: What the store takes at the end.
        peak_disk_bytes: The highest sample.
        disk_slope_bytes: Growth per round, after the fifth.
        most_files: Highest number of files that it held open.
        devices_cpu_s: Processor time of the devices' processes, on the same machine.
        devices_lag_s: How late the devices' own processes were, 99th percentile.
        load_1m: Load average before.
        samples: All looks at the coordinator, times from the first.
    """

    devices: int
    cohort: int
    rounds: int
    update_bytes: int
    processes: int
    is_shared: bool
    is_tls: bool
    outcome: str
    enrolled: int
    enrolling_s: float | None
    enrolling_cpu_s: float | None
    rounds_s: tuple[float, ...]
    latencies: dict[str, Latency]
    errors: dict[str, int]
    held_back: int
    accepted: int
    refused: int
    cpu_s: float | None
    shares_s: dict[str, float]
    requests_per_s: float | None
    rss_bytes: tuple[int, int, int]
    peak_rss_bytes: int
    rss_slope_bytes: float | None
    late_rss_slope_bytes: float | None
    disk_bytes: int
    peak_disk_bytes: int
    disk_slope_bytes: float | None
    most_files: int
    devices_cpu_s: float
    devices_lag_s: float
    load_1m: float
    samples: tuple[Sample, ...]

    @property
    def is_done(self) -> bool:
        return self.outcome == "done"

    @property
    def all_errors(self) -> int:
        return sum(self.errors.values())


@dataclass(frozen=True)
class Heard:
    """When steps reached the devices, over all their processes.

    Attributes:
        began_s: When the first device heard of the training of each round, from round 1 on.
        over_s: When the first heard that the run is over; 0 if none did.
        after_s: Seconds from the first device of each step to each other one of it.
    """

    began_s: tuple[float, ...]
    over_s: float
    after_s: tuple[float, ...]

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """Where rounds begin, and where the last one ends, if it has."""
        return (*self.began_s, self.over_s) if self.over_s else self.began_s

    @property
    def rounds_s(self) -> tuple[float, ...]:
        return tuple(later - earlier for earlier, later in pairwise(self.bounds_s))


def heard(several: Sequence[Mapping[str, Sequence[float]]], over_s: Sequence[float]) -> Heard:
    """Join what processes heard.

    Args:
        several: Of each process, when its devices heard of each step (`ROUND KIND`).
        over_s: Of each, when its first device heard of the end; 0 if none did.
    """
    steps: dict[str, list[float]] = {}
    for one in several:
        for step, times_s in one.items():
            steps.setdefault(step, []).extend(times_s)
    first = {step: min(times_s) for step, times_s in steps.items()}
    after = [at_s - first[step] for step, times_s in steps.items() for at_s in times_s]
    began, index = [], 1
    while (name := f"{index} train") in first:
        began.append(first[name])
        index += 1
    return Heard(tuple(began), min((at_s for at_s in over_s if at_s), default=0.0), tuple(after))


def latencies(several: Sequence[Mapping[str, Sequence[float]]], steps: Heard) -> dict[str, Latency]:
    return together(several) | ({"heard": latency(steps.after_s)} if steps.after_s else {})


def growth(
    samples: Sequence[Sample], name: str, steps: Heard, last: int | None = None
) -> float | None:
    """Growth of a figure per round, once the first rounds are over; of the last ones alone."""
    first = SETTLED if last is None else max(SETTLED, len(steps.rounds_s) - last)
    return slope(samples, name, steps.bounds_s, first)


def cpu_between(samples: Sequence[Sample], start_s: float, end_s: float) -> float:
    return near(samples, end_s).cpu_s - near(samples, start_s).cpu_s


def lag(several: Sequence[Sequence[float]]) -> float:
    every = sorted(value for one in several for value in one)
    return quantile(every, 0.99) if every else 0.0
