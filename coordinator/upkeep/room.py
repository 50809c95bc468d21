"""How much room the store's disk has, and whether that is too little to go on."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol

from coordinator.upkeep.limits import LEAST_FREE_BYTES

LOOK_S = 1.0  # between two looks at the disk


class Usage(Protocol):
    """What `shutil.disk_usage` says."""

    @property
    def free(self) -> int: ...


class Room:
    """A low-water mark of a disk; safe to use from several threads.

    Args:
        folder: On the disk.
        least_free_bytes: Below this much free space nothing more is taken; 0 for no mark.
        usage: What `shutil.disk_usage` says.
        clock: Seconds that go forward.
    """

    def __init__(
        self,
        folder: Path,
        least_free_bytes: int = LEAST_FREE_BYTES,
        usage: Callable[[Path], Usage] = shutil.disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.least_free_bytes = least_free_bytes
        self._folder, self._usage, self._clock = folder, usage, clock
        self._lock = Lock()
        self._looked_s, self._free_bytes = float("-inf"), 0

    @property
    def free_bytes(self) -> int:
        """Free space, as it was at most a second ago."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s, self._free_bytes = now_s, self._usage(self._folder).free
            return self._free_bytes

    @property
    def is_full(self) -> bool:
        """Whether less is free than the mark says."""
        return self.least_free_bytes > 0 and self.free_bytes < self.least_free_bytes
