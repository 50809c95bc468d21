"""Disk space of a store: limits set by `serve`, as other commands read them, and free space.

The reserve of free space is kept beside the store, since it is about this disk; the number of
rounds to keep is in the database, for commands on other machines too.
"""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import from_json, write_atomically
from smidgen.edge_client.planning.sizes import parse_size

KEEP_ROUNDS = 20
LEAST_FREE, LEAST_FREE_BYTES = "512M", 512 << 20
MOST_ROUNDS = 1_000_000
FILE = "limits.json"


@dataclass(frozen=True)
class DiskLimits:
    """How much of a run is kept, and how much of the disk is left alone.

    Attributes:
        keep_rounds: How many of a run's newest rounds keep their adapter.
        least_free_bytes: Below this much free space nothing more is taken; 0 for no mark.
    """

    keep_rounds: int = KEEP_ROUNDS
    least_free_bytes: int = LEAST_FREE_BYTES


def limits_of(keep_rounds: int, least_free: str) -> DiskLimits:
    """Limits as they are typed.

    Raises:
        WrongInput: Names the option.
    """
    demand(0 <= keep_rounds <= MOST_ROUNDS, f"--keep-rounds {keep_rounds}: 0 to {MOST_ROUNDS}")
    is_none = least_free == "0"
    least = 0 if is_none else parse_size("--least-free", least_free, "0 for no mark")
    return DiskLimits(keep_rounds, least)


def note(folder: Path, limits: DiskLimits) -> None:
    """Write down what a store is served with; a full disk may not take it."""
    with suppress(OSError):
        write_atomically(folder / FILE, json.dumps(asdict(limits)).encode(), mode=0o600)


def noted(folder: Path) -> DiskLimits:
    """What a store was served with last; the defaults where nobody knows."""
    try:
        return from_json((folder / FILE).read_bytes(), DiskLimits)
    except (OSError, msgspec.MsgspecError):
        return DiskLimits()


def rounds_kept(store: Store) -> int:
    """How many of a run's newest rounds keep their adapter in a store."""
    known = store.marks.keep_rounds()
    return noted(store.folder).keep_rounds if known is None else known


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
        return self.least_free_bytes > 0 and self.free_bytes < self.least_free_bytes
