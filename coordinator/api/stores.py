"""A store by its folder, as functions and commands are given it."""

from pathlib import Path
from typing import TypeAlias

from coordinator.storage.store import DATABASE, Store, StoreError

Place: TypeAlias = str | Path
RESTORE = "restore it from a backup, or name another --store"


def open_store(folder: Place, is_upgrading: bool = False) -> Store:
    """The store of a folder that has one.

    Args:
        folder: The store's.
        is_upgrading: Whether an older store is brought up to date.

    Raises:
        StoreError: It has none, or one that another smidgen wrote.
    """
    place = Path(folder)
    if not (place / DATABASE).is_file():
        if _holds_blobs(place):
            raise StoreError(f"store {folder} holds adapters, but no {DATABASE}; {RESTORE}")
        raise StoreError(f"no store at {folder}; make one with `create`, or name it with --store")
    return Store(place, is_upgrading=is_upgrading)


def holds_store(folder: Path) -> bool:
    """Whether a folder holds a store, or what is left of one."""
    return (folder / DATABASE).is_file() or _holds_blobs(folder)


def _holds_blobs(folder: Path) -> bool:
    try:
        return any((folder / "blobs").iterdir())
    except OSError:
        return False
