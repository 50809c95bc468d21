"""Rollback detection at start: whether the database is still the one last used.

A journal's hash chain shows whether an event was changed; the heads beside the database show
whether a journal's end is missing: after a restored copy, a lost write-ahead log, a swap. Both
guard against accidents: whoever can write to the store can rewrite both.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.storage.blobs import RESTORE, BlobDamaged
from smidgen.coordinator.storage.errors import StoreError
from smidgen.coordinator.storage.journals import FILE, Heads, HeadsError, read_heads
from smidgen.coordinator.storage.place import DATABASE
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import updates_kept

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
