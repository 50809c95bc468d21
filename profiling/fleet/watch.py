"""Samples a coordinator from outside, once a second: memory, processor, files, disk.

With several serving processes the figures are their sum, beside the processor time of each and of
their store's servers.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from profiling.instruments.sampler import Background

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
