"""Keeps a store small while it is served, and says when its disk is full."""

import logging
from collections.abc import Callable
from pathlib import Path

from coordinator.rounds.history import KNOWN_ROUNDS
from coordinator.storage.rows.reports import forget_old
from coordinator.storage.store import Store
from coordinator.upkeep.limits import Limits
from coordinator.upkeep.pruning import Busy, Kept, remove
from coordinator.upkeep.room import Room, Usage
from edge_client.planning.allocator import trim
from edge_client.tables import size

KEEP_REPORTS = KNOWN_ROUNDS  # of a run; as many as its journal tells of
REPORTS_AT_ONCE = 50  # rounds whose reports go together, each as many steps
LOG = logging.getLogger(__name__)


class Caretaker:
    """Looks after one store; `look` and `tidy` are called by one thread, `is_full` by any.

    Args:
        store: Which.
        kept: What is needed by now.
        limits: What it may hold.
        usage: What `shutil.disk_usage` says.

    Attributes:
        room: Its disk.
        is_due: Whether there may be something to remove; set by who closes a step.
    """

    def __init__(
        self, store: Store, kept: Kept, limits: Limits, usage: Callable[[Path], Usage]
    ) -> None:
        self._store, self._kept = store, kept
        self.room = Room(store.folder, limits.least_free_bytes, usage)
        self.is_due = True  # what an earlier process left
        self._was_full = self._has_failed = False
        self._tidied = 0

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room for another step's updates."""
        return self.room.is_full

    def look(self) -> bool:
        """Whether the disk is full; says so when that changes, and looks for what may go."""
        is_full = self.room.is_full
        if is_full != self._was_full:
            self._was_full, self.is_due = is_full, True
            free, least = size(self.room.free_bytes), size(self.room.least_free_bytes)
            if is_full:
                LOG.warning(
                    "the disk of the store is full: %s free, --least-free is %s; no step opens "
                    "and no update is taken until there is room",
                    *(free, least),
                )
            else:
                LOG.info("the disk of the store has room again: %s free; going on", free)
        return is_full

    def tidy(self) -> None:
        """Remove what nothing needs any more, if a step has closed; gone on with if it is cut."""
        if not self.is_due:
            return
        try:
            if self._tidied % REPORTS_AT_ONCE == 0:
                forget_old(self._store.database, KEEP_REPORTS, REPORTS_AT_ONCE)
            self._tidied += 1
            remove(self._store, self._store.blobs.present().keys() - self._kept(), self._kept)
        except Busy:
            return  # uploads are under way: at the next tick
        except OSError as error:
            if not self._has_failed:
                LOG.warning("cannot remove what is no longer needed: %s", error)
            self._has_failed = True
            return
        self.is_due = self._has_failed = False
        trim()  # what the step's updates took
