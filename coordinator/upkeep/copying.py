"""A copy of a store, taken while it is served: a folder that is a store itself.

The database first, by SQLite's own way of copying one that is written to; then the blobs that it
speaks of, which nobody removes meanwhile. The copy is looked over before it gets its name.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from coordinator.storage.store import DATABASE, Store, StoreError
from coordinator.upkeep import limits
from coordinator.upkeep.pruning import Books, present
from coordinator.upkeep.verifying import Found, look
from coordinator.upkeep.watch import TLS, note
from edge_client.files import sync_folder

BESIDE = (TLS,)  # folders that go with it as they are


def copy_store(store: Store, place: Path) -> Found:
    """Fill an empty folder with a copy of a store.

    Args:
        store: May be served meanwhile, by this process or another one.
        place: An empty folder, which only its owner may read.

    Returns:
        What a look at the copy gave; nothing wrong.

    Raises:
        StoreError: The store is damaged; says where.
        OSError: The copy cannot be written.
    """
    with store.claiming():
        _copy_database(store.folder / DATABASE, place / DATABASE)
        with closing(Store(place)) as copy:
            keep_rounds = limits.noted(store.folder).keep_rounds
            here = present(store)
            for name in sorted(Books(copy, keep_rounds, None, is_thorough=False).kept()):
                if name in here:
                    copy.put(store.read(name), name)
            note(copy).close()
            _copy_beside(store.folder, place)
            found = look(copy)
    if found.lines:
        raise StoreError(f"the store is damaged: {found.lines[0]}")
    return found


def _copy_database(database: Path, to: Path) -> None:
    to.touch(mode=0o600)
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as kept:
        kept.execute("PRAGMA synchronous=FULL")
        source.backup(kept)


def _copy_beside(folder: Path, place: Path) -> None:
    copy: Callable[..., object] = shutil.copy2
    for name in BESIDE:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, place / name, copy_function=copy)
            for path in (place / name).iterdir():
                path.chmod(0o600)
            (place / name).chmod(0o700)
            sync_folder(place / name)
    if (folder / limits.FILE).is_file():
        shutil.copy2(folder / limits.FILE, place / limits.FILE)
        (place / limits.FILE).chmod(0o600)
    sync_folder(place)
