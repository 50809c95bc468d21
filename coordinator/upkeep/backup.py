"""Backup, moving and verification of a store while it is served; rollback detection at its start.

Verification reads the database, its journals, the blobs they need, and file permissions, and
changes nothing; meanwhile no blob is removed. A backup copies blobs under their hashes and rows in
one transaction, compares them, and is verified before use.

A database that is overwritten, truncated or replaced while serving is noticed within a second.
SQLite would notice only when it reads a page it has not cached, and would write to a replaced file.
A page changed in the middle is found by SQLite when it reads it, and by `coordinator verify`.

A rollback: the database is not the one last used. A journal's hash chain shows whether an event was
changed; the heads beside the database show whether a journal's end is missing: after a restored
copy, a lost write-ahead log, a swap. Both guard against accidents: whoever can write to the store
can rewrite both.
"""

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.storage.blobs import RESTORE, BlobDamaged
from smidgen.coordinator.storage.database import (
    DATABASE,
    Connection,
    Database,
    DatabaseDamaged,
    StoreError,
)
from smidgen.coordinator.storage.journals import FILE, Heads, HeadsError, read_heads
from smidgen.coordinator.storage.schema import CopyError, copy_rows, mark_arriving
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import LIMITS_FILE, Books, rounds_kept, updates_kept
from smidgen.edge_client.files import open_to_others, sync_folder

MAGIC = b"SQLite format 3\0"
WAL_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # by the order of bytes of its checksums


class DatabaseFile:
    """The file of one database, as it was first seen; for one thread.

    Args:
        database: SQLite's; of another kind nothing is looked at.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._path = Path(database.name) if database.is_file else None
        self._place: tuple[int, int] | None = None
        self._size_bytes, self._has_log = 0, False
        # Never closed: that would take away every lock of this process on the file, SQLite's too,
        # and the next process that leaves the database would take itself for the last one.
        self._handle: int | None = None

    def look(self) -> None:
        """Make sure that it is the file that it was; until it is, nobody reads or writes it.

        Raises:
            DatabaseDamaged: It is not.
        """
        if self._path is None:
            return
        with self._database.held():
            lack = next(self._lacks(self._path), "")
        self._database.lack = lack
        if lack:
            raise DatabaseDamaged(lack)

    def _lacks(self, path: Path) -> Iterator[str]:
        how = "restore the store from a backup, `smidgen coordinator verify` says what is wrong"
        try:
            found = path.stat()
            if self._handle is None:
                self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield f"the store's file {path.name} is gone; {how}"
            return
        magic = os.pread(self._handle, len(MAGIC), 0)
        log, wal = path.with_name(f"{path.name}-wal"), b""
        try:
            with log.open("rb") as file:
                wal, self._has_log = file.read(4), True
        except FileNotFoundError:
            if self._has_log:
                yield f"the store's file {log.name} is gone; {how}"
                return
        self._place = self._place or (found.st_dev, found.st_ino)
        if (found.st_dev, found.st_ino) != self._place:
            yield f"the store's file {path.name} was replaced by another; {how}"
        elif magic != MAGIC or (wal and wal not in WAL_MAGICS):
            yield f"the store's database is damaged: {path.name} was overwritten; {how}"
        elif found.st_size < self._size_bytes:
            yield f"the store's database is damaged: {path.name} was cut; {how}"
        else:
            self._size_bytes = found.st_size


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
        paths = [f"others may read {path}" for path in self.open]
        return [*self.wrong, *self.behind, *paths]


def look(store: Store) -> Found:
    """Look a store over; takes as long as reading all of it."""
    found = Found()
    with store.claiming():
        try:
            found.wrong += damages(store)
            found.behind += behind(store)
            found.behind += [
                f"{lack}; restore it from a backup, or take the store as it is with --accept"
                for lack in unsecured(store)
            ]
            found.wrong += _journals(store, found)
            found.wrong += _blobs(store, found)
        except DatabaseDamaged:
            found.wrong = found.wrong or [f"{DATABASE} cannot be read; {RESTORE}"]
    found.open += open_to_others(store.folder)
    return found


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
    kept = Books(of, rounds_kept(store), None, is_thorough=False).kept()
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
    if (folder / TLS).is_dir():
        shutil.copytree(folder / TLS, place / TLS, copy_function=copy)
        for path in (place / TLS).iterdir():
            path.chmod(0o600)
        (place / TLS).chmod(0o700)
        sync_folder(place / TLS)
    if (folder / LIMITS_FILE).is_file():
        shutil.copy2(folder / LIMITS_FILE, place / LIMITS_FILE)
        (place / LIMITS_FILE).chmod(0o600)
    sync_folder(place)


LOOKS = 3  # at a journal that seems to be another one
TLS = "tls"  # the store's folder of certificates; see `smidgen.coordinator.trust.folder`


@contextmanager
def watched(store: Store) -> Iterator[None]:
    """Refuse a store that is not the one of the last time, then note how far its journals go.

    Only by the process that serves it.

    Raises:
        StoreError: Says what differs, and what to do.
    """
    for damage in damages(store):
        raise StoreError(f"store {store.folder}: {damage}")
    if lacks := behind(store):
        raise StoreError(
            f"store {store.folder}: {lacks[0]}; restore its newest backup, or take it as it is "
            f"with `smidgen coordinator verify --store {store.folder} --accept`"
        )
    with store.noting(note(store)):
        yield


def note(store: Store) -> Heads:
    """Take the journals as they are for whole; only by the process that serves the store."""
    heads = Heads(store.folder / FILE, store.ends())
    store.marks.watch()
    return heads


def damages(store: Store) -> list[str]:
    """What SQLite finds wrong with the database: at most one line, with what to do."""
    if not store.database.is_file:
        return []
    with store.database.reading() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(5)").scalars().all()
    lines = [line for one in found for line in one.splitlines() if not line.startswith("***")]
    if lines in ([], ["ok"]):
        return []
    more = f"; {len(lines) - 1} more" if len(lines) > 1 else ""
    return [f"{DATABASE} is damaged ({lines[0][:80]}{more}); {RESTORE}"]


def behind(store: Store) -> list[str]:
    """Where the database lags behind the heads beside it, or differs from them, in words.

    Looked at again where they differ: a journal may be folded between a look at its head and one at
    itself, and then that head's event is gone, but there is a newer head.
    """
    for _ in range(LOOKS - 1):
        if not _behind(store):
            return []
    return _behind(store)


def _behind(store: Store) -> list[str]:
    try:
        heads = read_heads(store.folder / FILE)  # before the database, which only grows
    except FileNotFoundError:
        return [f"its file {FILE} is missing"] if store.marks.is_watched() else []
    except HeadsError:
        return [f"its file {FILE} is damaged"]
    ends, found = store.ends(), []
    for run_id, head in heads.items():
        end = ends.get(run_id)
        if end is None or end.seq < head.seq:
            has = "none of it" if end is None else f"{end.seq + 1}"
            found.append(
                f"its database is behind: the journal of run {run_id} had {head.seq + 1} events, "
                f"now {has}"
            )
        elif store.link(run_id, head.seq) != head.link:
            found.append(f"the journal of run {run_id} is another one than it was")
    return found


def unsecured(store: Store) -> list[str]:
    """That the store's certificates are gone, in words; nothing where it never had any."""
    if (store.folder / TLS).is_dir() or not store.marks.is_secured():
        return []
    return [f"its folder {TLS}/, with the CA that devices believe, is missing"]


def check_needed(store: Store, name: str, state: State) -> None:
    """Refuse a run whose next step would stumble over a damaged blob.

    Raises:
        StoreError: Its adapter or an update of its open step is missing or damaged.
    """
    for blob in sorted({state.adapter_sha256, *updates_kept(state)}):
        try:
            store.check(blob)
        except BlobDamaged as error:
            raise StoreError(f"run {name} cannot go on: {error}") from error
