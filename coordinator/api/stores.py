"""A store by its folder, as functions and commands are given it."""

from pathlib import Path
from typing import TypeAlias

from coordinator.storage.store import DATABASE, Store, StoreError

Place: TypeAlias = str | Path


def open_store(folder: Place, is_upgrading: bool = False) -> Store:
    """The store of a folder that has one.

    Args:
        folder: The store's.
        is_upgrading: Whether an older store is brought up to date.

    Raises:
        StoreError: It has none, or one that another smidgen wrote.
    """
    if not (Path(folder) / DATABASE).is_file():
        raise StoreError(f"no store at {folder}; make one with `create`, or name it with --store")
    return Store(Path(folder), is_upgrading=is_upgrading)
