"""The coordinator watched from outside, once a second: memory, processor, files, and its disk."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import psutil

EVERY_S = 1.0


@dataclass(frozen=True)
class Sample:
    """One look at a coordinator.

    Attributes:
        at_s: When, by `time.monotonic()`.
        rss_bytes: Its resident set.
        cpu_s: Its processor time so far, user and system.
        open_files: File descriptors that it holds, sockets among them.
        disk_bytes: What its store takes on disk, by the blocks of its files.
    """

    at_s: float
    rss_bytes: int
    cpu_s: float
    open_files: int
    disk_bytes: int


class Watch:
    """A thread that looks at a process until the block ends.

    Args:
        pid: The process.
        store: Folder of its store.

    Attributes:
        samples: In order of time.
    """

    def __init__(self, pid: int, store: Path) -> None:
        self._process, self._store = psutil.Process(pid), store
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it ended: what was seen is seen
            while not self._is_over.is_set():
                self.samples.append(self._look())
                self._is_over.wait(EVERY_S)

    def _look(self) -> Sample:
        with self._process.oneshot():
            times = self._process.cpu_times()
            held = self._process.memory_info().rss
        files = self._process.num_fds()
        disk = disk_bytes(self._store)
        return Sample(time.monotonic(), held, times.user + times.system, files, disk)


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
    """The last look at or before a time; the first one before all of them."""
    return next((one for one in reversed(samples) if one.at_s <= at_s), samples[0])
