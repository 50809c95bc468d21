"""A store by its folder or place, as functions and commands are given it."""

from pathlib import Path
from typing import TypeAlias

from coordinator.fleet.clock import FILE as CLOCK
from coordinator.storage.blobs.bucket import CACHE
from coordinator.storage.dialects.locks import CLAIMS, SERVE
from coordinator.storage.errors import StoreError
from coordinator.storage.journals import FILE as HEADS
from coordinator.storage.place import BLOBS, DATABASE, StorePlace, place_of
from coordinator.storage.store import Store
from coordinator.trust.folder import NAME as TLS
from coordinator.upkeep.disk_space import FILE as LIMITS
from edge_client.tables import plain

Place: TypeAlias = str | Path
AtStore: TypeAlias = str | Path | StorePlace
# What tells a coordinator's folder; of one with a shared database some of it.
OURS = {DATABASE, BLOBS, CACHE, TLS, "uploads", SERVE, CLAIMS, HEADS, CLOCK, LIMITS}
RESTORE = "restore it from a backup, or name another --store"


def open_store(store: AtStore, may_pair: bool = False, is_left: bool = False) -> Store:
    """The store of a place that has one.

    Args:
        store: Its folder or place.
        may_pair: Whether database and blobs are paired where neither is with another.
        is_left: Whether it may be one that was moved elsewhere.

    Raises:
        StoreError: It has none, or one that another smidgen wrote.
    """
    place = place_of(store)
    if not place.is_shared and not place.file.is_file():
        if _holds_blobs(place.folder):
            raise StoreError(f"store {place} holds adapters, but no {DATABASE}; {RESTORE}")
        raise StoreError(
            f"no store at {place.folder}; make one with `create`, or name it with --store"
        )
    return Store(place, may_pair=may_pair, is_new=False, is_left=is_left)


def new_store(store: AtStore) -> Store:
    """The store of a place, made where there is none.

    Raises:
        StoreError: Its folder is somebody's own, or the store another smidgen's.
    """
    place = place_of(store)
    try:
        found = {path.name for path in place.folder.iterdir()} if place.folder.is_dir() else set()
    except OSError:
        found = set()  # whoever opens it says why
    if found and not found & OURS:
        raise StoreError(
            f"--store {place.folder} holds other things, such as {plain(sorted(found)[0])[:80]}; "
            "give a new or an empty folder, or a coordinator's"
        )
    return Store(place)


def holds_store(store: AtStore) -> bool:
    """Whether a place holds a store, or what is left of one; of a server that shall say itself."""
    place = place_of(store)
    return place.is_shared or place.file.is_file() or _holds_blobs(place.folder)


def _holds_blobs(folder: Path) -> bool:
    try:
        return any((folder / BLOBS).iterdir())
    except OSError:
        return False
