"""Looking a store over: its database, its journals, the blobs that it needs, and who may read it.

Nothing is changed. It may be served meanwhile: whoever looks keeps others from removing blobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.storage.blobs.blobs import RESTORE, BlobDamaged
from coordinator.storage.database import DatabaseDamaged
from coordinator.storage.errors import StoreError
from coordinator.storage.place import DATABASE
from coordinator.storage.store import Store
from coordinator.upkeep.pruning import Books
from coordinator.upkeep.watch import behind, damages, unsecured
from edge_client.files import open_to_others


@dataclass
class Found:
    """What a look at a store gave.

    Attributes:
        wrong: What is wrong with its content, a line each.
        behind: Where its database is not as far as it was, or another one than it was, and what is
            gone beside it.
        open: Files and folders that others may read.
        runs: How many there are.
        events: In their journals.
        blobs: Files whose bytes match their names.
        blob_bytes: Their size.
    """

    wrong: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    open: list[Path] = field(default_factory=list)
    runs: int = 0
    events: int = 0
    blobs: int = 0
    blob_bytes: int = 0

    @property
    def lines(self) -> list[str]:
        """All that is wrong."""
        paths = [f"others may read {path}" for path in self.open]
        return [*self.wrong, *self.behind, *paths]


def look(store: Store) -> Found:
    """Look a store over; takes as long as reading all of it."""
    found = Found()
    with store.claiming():
        try:
            found.wrong += damages(store)
            found.behind += [*behind(store), *map(_advised, unsecured(store))]
            found.wrong += _journals(store, found)
            found.wrong += _blobs(store, found)
        except DatabaseDamaged:
            found.wrong = found.wrong or [f"{DATABASE} cannot be read; {RESTORE}"]
    found.open += open_to_others(store.folder)
    return found


def _advised(lack: str) -> str:
    return f"{lack}; restore it from a backup, or take the store as it is with --accept"


def _journals(store: Store, found: Found) -> Iterator[str]:
    for run in store.runs():
        found.runs += 1
        try:
            found.events += sum(1 for _ in store.journal(run.run_id))
        except (StoreError, ValueError) as error:
            yield str(error)


def _blobs(store: Store, found: Found) -> Iterator[str]:
    try:  # what every way of pruning leaves
        needed = Books(store, 0, None, is_thorough=True).kept()
    except (StoreError, ValueError):
        needed = set()  # a journal that cannot be read was named already
    sizes = {
        name: size for name, size in store.blobs.present().items() if not name.endswith(".tmp")
    }
    for name in sorted(needed | sizes.keys()):
        try:
            store.check(name)
        except BlobDamaged as error:
            yield str(error) if name in needed else f"{error} (no run needs it)"
        else:
            found.blobs, found.blob_bytes = found.blobs + 1, found.blob_bytes + sizes.get(name, 0)
