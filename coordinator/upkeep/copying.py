"""A copy of a store in another place, taken while it is served, and a store that moves.

The blobs that the database speaks of are copied under their hashes, the rows in one transaction
that compares them. The copy is looked over before anybody may use it.
"""

import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from coordinator.storage.blobs.blobs import BlobDamaged
from coordinator.storage.database import Connection
from coordinator.storage.errors import StoreError
from coordinator.storage.rows.every import CopyError, copy_rows, mark_arriving
from coordinator.storage.store import Store
from coordinator.upkeep import limits
from coordinator.upkeep.pruning import Books
from coordinator.upkeep.verifying import Found, look
from coordinator.upkeep.watch import TLS, damages, note
from edge_client.files import sync_folder

BESIDE = (TLS,)  # folders that go with it as they are


def copy_store(store: Store, copy: Store) -> Found:
    """Fill an empty store with a copy of another one.

    Args:
        store: May be served meanwhile, by this process or another one.
        copy: In a place that only its owner may read.

    Returns:
        What a look at the copy gave; nothing wrong.

    Raises:
        StoreError: The store is damaged; says where.
        OSError: The copy cannot be written.
    """
    for damage in damages(store):
        raise StoreError(f"the store is damaged: {damage}")
    with store.claiming():
        _copy_database(store.database.snapshot(), copy, None)
        _copy_blobs(store, copy, of=copy)
    return _finished(store, copy)


def move_store(store: Store, copy: Store, to: str) -> Found:
    """Fill an empty store with another one, which nobody may use from then on.

    A cut leaves the store as it was, or moved; `Store.stay` takes the move back. The copy says that
    it is not whole, and nobody opens it, until the caller has it `arrive`. What a move before has
    left in it counts (blobs), or makes room (rows).

    Args:
        store: Which nobody serves; the caller sees to that.
        copy: Another one, which nobody serves either.
        to: Where that will be.

    Returns:
        What a look at the copy gave; nothing wrong.

    Raises:
        StoreError: It is damaged.
        OSError: The copy cannot be written.
    """
    for damage in damages(store):
        raise StoreError(f"the store is damaged: {damage}")
    with store.claiming():
        done = _copy_blobs(store, copy, of=store)  # most of them, before anybody has to wait
        _copy_database(store.marks.leaving(to), copy, str(store.place))
        _copy_blobs(store, copy, of=copy, done=done)
        return _finished(store, copy)


def _copy_database(
    reading: AbstractContextManager[Connection], copy: Store, moves_from: str | None
) -> None:
    try:
        with reading as source, copy.database.transaction() as target:
            if moves_from is not None:  # the copy is written first: a kill must not make it two
                mark_arriving(target, moves_from)
            copy_rows(source, target)
    except CopyError as error:
        raise StoreError(f"the database cannot be copied: {error}") from error


def _copy_blobs(store: Store, copy: Store, of: Store, done: Collection[str] = ()) -> set[str]:
    """Copy the blobs that the journals of one of the two speak of, but those that were copied.

    Returns:
        What was there, or was copied now.
    """
    if str(store.blobs) == str(copy.blobs):
        return set()
    here, there = store.blobs.present(), copy.blobs.present()
    kept = Books(of, limits.rounds_kept(store), None, is_thorough=False).kept()
    for name in sorted((kept & here.keys()) - set(done)):
        if name not in there or not _is_whole(copy, name):
            copy.put(store.read(name), name)
            copy.blobs.forget([name])  # the look at the copy reads what is there
    return kept & here.keys()


def _is_whole(store: Store, name: str) -> bool:
    try:
        store.check(name)
    except BlobDamaged:
        return False
    return True


def _finished(store: Store, copy: Store) -> Found:
    """Copy what lies beside, and look the copy over."""
    copy.marks.secure(store.marks.is_secured())
    copy.marks.note_keep_rounds(store.marks.keep_rounds())
    if copy.folder != store.folder:
        _copy_beside(store.folder, copy.folder)
    if not copy.place.is_shared:
        note(copy).close()
    found = look(copy)
    if found.lines:
        raise StoreError(f"the store is damaged: {found.lines[0]}")
    return found


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
