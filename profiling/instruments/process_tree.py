"""A process and all that it started, watched from outside: processor time and memory.

A process stays known once it was seen, also when its parent has died; what the first one started
and what is alive at the end is ended. Of one that comes and goes between two samples no memory is
seen, and processor time only if its parent waited for it. Ids are given out again, so a process is
its id and the clock tick in which it began (as psutil tells them apart).

    with ProcessTree(process.pid) as tree:
        process.wait()
        print(tree.take())
"""

import threading
from contextlib import suppress
from dataclasses import dataclass

import psutil

from profiling.instruments.background import Background

INTERVAL_S = 0.5
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class TreeUse:
    """What a tree of processes has used so far.

    Attributes:
        cpu_s: User and system time of all: of those that ended as the kernel added it to the one
            that waited for them, or as last seen, whichever sums up to more; never too much.
        peak_pss_bytes: Highest sample of their resident memory; a page that several of them share
            counts once (Pss).
        peak_rss_bytes: The same where it counts in each of them (Rss), as `ps` shows it.
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

    def __init__(self, root: int, interval_s: float = INTERVAL_S) -> None:
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
