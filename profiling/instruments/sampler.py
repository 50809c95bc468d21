"""Samplers of other processes: peak memory of one, processor time and memory of a process tree.

    with Sampler(process.pid) as sampler:
        process.wait()
        print(sampler.take())

A thread samples until the block ends; `ProcessTree` is used in the same way. The kernel keeps the
peak of resident memory (VmHWM), so the last sample suffices for it. It keeps none of anonymous
memory: that peak is the highest sample, and misses what rises and falls within one interval.

A tree's process stays known once seen, even when its parent has died; what it started and is still
alive at the end is killed. One that comes and goes between samples has no memory, and processor
time only if its parent waited for it. Process ids are reused, so a process is its id and start tick
(as psutil tells them apart).
"""

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import psutil

from smidgen.edge_client.metering.memory import PROC

BackgroundT = TypeVar("BackgroundT", bound="Background")


class Background(ABC):
    """A daemon thread that runs `_watch` from the beginning of a block to its end.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def __enter__(self: BackgroundT) -> BackgroundT:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @abstractmethod
    def _watch(self) -> None:
        """Look until `_is_over` is set."""


INTERVAL_S = 0.01
KIBIBYTES = re.compile(rb"^VmHWM:\s*(\d+)(?:.*^RssAnon:\s*(\d+))?", re.MULTILINE | re.DOTALL)
MOST = 1 << 14  # bytes of a status


@dataclass(frozen=True)
class Peaks:
    """The highest readings of one phase.

    Attributes:
        peak_rss_bytes: Measured by the kernel, without gaps.
        peak_anon_bytes: Highest of the samples.
        samples: How many there were.
    """

    peak_rss_bytes: int = 0
    peak_anon_bytes: int = 0
    samples: int = 0


class Sampler(Background):
    """A thread that reads a process's memory until the block ends.

    Args:
        process: Id of the process.
        interval_s: Pause between two samples.
    """

    def __init__(self, process: int, interval_s: float = INTERVAL_S) -> None:
        super().__init__("sampler")
        self._process, self._interval_s = process, interval_s
        self._highest, self._lock = (0, 0, 0), threading.Lock()

    def take(self) -> Peaks:
        """The highest readings since the last call; a new phase begins."""
        with self._lock:
            peaks = Peaks(*self._highest)
            self._highest = 0, 0, 0
        return peaks

    def _watch(self) -> None:
        for rss, anon in _readings(self._process):
            with self._lock:
                highest = self._highest
                self._highest = max(highest[0], rss), max(highest[1], anon), highest[2] + 1
            time.sleep(self._interval_s)  # half the processor time of waiting for an event
            if self._is_over.is_set():
                return


def _readings(process: int) -> Iterator[tuple[int, int]]:
    """VmHWM and RssAnon, as `read_memory` has them, from one open file: a sixth of its time."""
    try:
        status = os.open(PROC / str(process) / "status", os.O_RDONLY)
    except OSError:
        return
    try:
        while found := KIBIBYTES.search(os.pread(status, MOST, 0)):
            yield int(found[1]) << 10, int(found[2] or 0) << 10
    except OSError:  # it is gone
        pass
    finally:
        os.close(status)


ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class TreeUse:
    """What a tree of processes has used so far.

    Attributes:
        cpu_s: User and system time of all: of those that ended as the kernel added it to the one
            that waited for them, or as last seen, whichever sums up to more; never too much.
        peak_pss_bytes: Highest sample of their resident memory; a page that several of them share
            counts once (Pss).
        peak_rss_bytes: Highest sample with such a page counted in each (Rss), as `ps` shows it.
    """

    cpu_s: float
    peak_pss_bytes: int
    peak_rss_bytes: int


class ProcessTree(Background):
    """A thread that watches a process and its descendants until the block ends; then ends these.

    Args:
        root: Id of the first process.
        interval_s: Pause between two samples.

    Attributes:
        left: Ids of descendants that had to be ended; known after the block.
    """

    def __init__(self, root: int, interval_s: float = 0.5) -> None:
        super().__init__("process-tree")
        self._root, self._interval_s = root, interval_s
        self._cpu_s: dict[psutil.Process, float] = {}
        self._waited_s: dict[psutil.Process, float] = {}  # of those that each has waited for
        self._peak_pss_bytes = self._peak_rss_bytes = 0
        self._lock = threading.Lock()
        self.left: list[int] = []

    def __enter__(self) -> "ProcessTree":
        with suppress(psutil.NoSuchProcess):
            self._cpu_s[psutil.Process(self._root)] = 0.0
        self._sample()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        left = [process for process in self._sample() if process.pid != self._root]
        self.left = [process.pid for process in left]
        for process in left:
            with suppress(psutil.Error):
                process.kill()

    def take(self) -> TreeUse:
        self._sample()
        with self._lock:
            seen_s = sum(self._cpu_s.values())
            told_s = sum(self._cpu_s[process] + more for process, more in self._waited_s.items())
            return TreeUse(max(seen_s, told_s), self._peak_pss_bytes, self._peak_rss_bytes)

    def _watch(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self._sample()

    def _sample(self) -> list[psutil.Process]:
        with self._lock:
            self._waited_s.clear()
            alive = [process for process in self._tree() if self._count(process)]
            held = [_resident(process) for process in alive]
            self._peak_pss_bytes = max(self._peak_pss_bytes, sum(pss for pss, _rss in held))
            self._peak_rss_bytes = max(self._peak_rss_bytes, sum(rss for _pss, rss in held))
        return alive

    def _tree(self) -> list[psutil.Process]:
        found: dict[psutil.Process, None] = {}
        for process in self._cpu_s:
            if process not in found and process.is_running():
                with suppress(psutil.NoSuchProcess):
                    below = process.children(recursive=True)
                    found |= dict.fromkeys([process, *below])
        return list(found)

    def _count(self, process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            with process.oneshot():
                if not process.is_running():
                    return False
                times, has_ended = process.cpu_times(), process.status() in ENDED
            self._cpu_s[process] = times.user + times.system
            self._waited_s[process] = times.children_user + times.children_system
            return not has_ended
        return False


def _resident(process: psutil.Process) -> tuple[int, int]:
    with suppress(psutil.Error, OSError):
        held = process.memory_full_info()
        return int(held.pss), int(held.rss)
    return 0, 0
