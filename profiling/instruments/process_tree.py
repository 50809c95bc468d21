"""A process and all that it started, watched from outside: processor time and memory.

A process stays known once it was seen, also when its parent has died; what the first one started
and what is alive at the end is ended. One that comes and goes between two samples is not seen.

    with ProcessTree(process.pid) as tree:
        process.wait()
        print(tree.take())
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.5
PROC = Path("/proc")
Identity = tuple[int, int]  # process id and start: ids are given out again


@dataclass(frozen=True)
class TreeUse:
    """What a tree of processes has used so far.

    Attributes:
        cpu_s: User and system time of all, of those that ended as last seen.
        peak_pss_bytes: Highest sample of their resident memory; a page that several of them share
            counts once (Pss).
    """

    cpu_s: float
    peak_pss_bytes: int


@dataclass(frozen=True)
class _Process:
    parent: int
    start: int
    cpu_ticks: int


class ProcessTree:
    """A thread that watches a process and its descendants until the block ends; then ends these.

    Args:
        root: Id of the first process.
        interval_s: Pause between two samples.

    Attributes:
        left: Ids of descendants that had to be ended; known after the block.
    """

    def __init__(self, root: int, interval_s: float = INTERVAL_S) -> None:
        self._root, self._interval_s = root, interval_s
        self._cpu_ticks: dict[Identity, int] = {}
        self._peak_pss_bytes = 0
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process-tree", daemon=True)
        self.left: list[int] = []

    def __enter__(self) -> "ProcessTree":
        self._sample()
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
        self.left = [pid for pid, _start in self._sample() if pid != self._root]
        for pid in self.left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def take(self) -> TreeUse:
        """What it has used up to now."""
        self._sample()
        ticks = sum(self._cpu_ticks.values())
        return TreeUse(ticks / os.sysconf("SC_CLK_TCK"), self._peak_pss_bytes)

    def _watch(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self._sample()

    def _sample(self) -> list[Identity]:
        """Read the tree once; those of it that live."""
        with self._lock:
            alive = list(self._alive())
            pss_bytes = sum(_pss_bytes(pid) for pid, _start in alive)
            self._peak_pss_bytes = max(self._peak_pss_bytes, pss_bytes)
        return alive

    def _alive(self) -> Iterator[Identity]:
        processes = _processes()
        pids = {self._root} if not self._cpu_ticks else set()
        pids |= {pid for pid, process in processes.items() if self._knows(pid, process)}
        while pids:
            for pid in pids & processes.keys():
                process = processes[pid]
                self._cpu_ticks[pid, process.start] = process.cpu_ticks
                yield pid, process.start
            processes = {pid: row for pid, row in processes.items() if pid not in pids}
            pids = {pid for pid, process in processes.items() if process.parent in pids}

    def _knows(self, pid: int, process: _Process) -> bool:
        return (pid, process.start) in self._cpu_ticks


def _processes() -> dict[int, _Process]:
    """Every process of this machine that is not a zombie."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The name before the last bracket may hold anything, blanks and brackets too.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                if fields[0] not in "ZX":
                    found[int(folder.name)] = _Process(int(fields[1]), int(fields[19]), ticks)
    return found


def _pss_bytes(pid: int) -> int:
    with suppress(OSError):
        for row in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if row.startswith("Pss:"):
                return int(row.split()[1]) << 10
    return 0
