"""Verifying, backing up, moving a store (the first two also while it is served), and pruning it."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from smidgen.coordinator.api.stores import AtStore, Place, holds_store, open_store
from smidgen.coordinator.storage.blobs import BlobDamaged
from smidgen.coordinator.storage.database import (
    DatabaseBusy,
    DatabaseDamaged,
    StoreError,
    StorePlace,
    check_blobs,
    place_of,
)
from smidgen.coordinator.storage.dialects import postgres
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.storage.dialects.sqlite import SERVE, FileLocks
from smidgen.coordinator.storage.runs import find_run
from smidgen.coordinator.storage.schema import is_empty
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import TLS, Found, copy_store, look, move_store, note
from smidgen.coordinator.upkeep.retention import (
    LEAST_FREE,
    PATIENCE_S,
    Books,
    Busy,
    limits_of,
    remove,
    rounds_kept,
)
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.files import sync_folder
from smidgen.edge_client.outputs import check_out_parent
from smidgen.edge_client.wire.tensors import sha256


def verify(store: AtStore, *, accept: bool = False) -> Found:
    """Look a store over: database, journals, blobs, and who may read it.

    Args:
        store: Folder of a store that `create` made.
        accept: Take the database as it is now for the newest, and certificates that are gone for
            gone, where nothing else is wrong: after a backup was put back by hand. Also take a
            store that was moved elsewhere as it was left.

    Raises:
        WrongInput: There is no such store; with `accept`, one that is served.
    """
    demand(holds_store(store), f"no store at {store}; name it with --store")
    try:
        if accept:
            with closing(Store(store, is_new=False, is_left=True)) as left:
                left.marks.stay()
        with closing(open_store(store)) as opened:
            found = look(opened)
            if accept and not found.wrong:
                _accept(opened)
                found.behind.clear()
            return found
    except StoreError as error:
        if accept:
            raise
        return Found(wrong=[str(error)])


def _accept(store: Store) -> None:
    with store.serving_alone():
        if not store.place.is_shared:
            note(store).close()
        store.marks.secure((store.folder / TLS).is_dir())


def backup(store: AtStore, out: Place) -> Found:
    """Copy a store, also while it is served; the copy is looked over before it gets its name.

    To restore: stop the coordinator, and serve a copy of the backup in the store's place.

    Args:
        store: Folder of a store that `create` made.
        out: New or empty folder for the copy, which is a store itself.

    Returns:
        What the copy holds.

    Raises:
        WrongInput: There is no such store, or `out` holds something.
        Failed: The store is damaged, or the copy cannot be written.
    """
    with closing(open_store(store)) as opened:
        return _into_folder(opened, "--out", StorePlace(Path(out)), copy_store)


def move(store: AtStore, to: str, *, blobs_to: str = "") -> Found:
    """Take a store that nobody serves to another place: from a folder to servers, or back.

    All rows go in one transaction, after the blobs: a move that is cut leaves the store as it was,
    and asked again it goes on. Every row and blob is compared. The new place is refused until all
    of it was found to be there, the old one from then on.

    Args:
        store: Folder of a store that `create` made.
        to: PostgreSQL database without a fleet, as postgresql://USER@HOST/NAME; or a new folder.
        blobs_to: Where the blobs go, as s3://BUCKET/PREFIX; by default into the new folder, and
            where `to` is a database they stay.

    Returns:
        What the store holds in its new place.

    Raises:
        WrongInput: There is no such store, it is served, or the place holds something.
        Failed: The store is damaged, or the new place cannot be written to.
    """
    place = place_of(store)
    check_blobs(blobs_to, "--blobs-to")
    new = StorePlace(Path(to).resolve(), blobs=blobs_to)
    if "://" in to:
        there = postgres.url_of(to, "--to")
        is_same = place.is_shared and postgres.is_same(place.url, there)
        demand(
            not is_same,
            f"--to {postgres.masked(there)} is where the store is; name the one that moves with "
            "--store alone, and unset SMIDGEN_DATABASE and SMIDGEN_BLOBS",
        )
        new = StorePlace(place.folder, to, blobs_to or place.blobs)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(_leaving(place, new)))
        with _told("--to", str(new)):
            stack.enter_context(opened.serving_alone())  # before a word is written anywhere
        if not new.is_shared:
            return _into_folder(opened, "--to", new, partial(move_store, to=str(new)))
        return _into_database(opened, new)


def _leaving(place: StorePlace, new: StorePlace) -> Store:
    """The store that moves; also one whose move to the same place was cut at its very end."""
    with closing(open_store(place, is_left=True)) as left:
        is_cut = left.marks.moved_to() == str(new)
    is_there = not new.is_shared and os.path.lexists(new.folder)
    return open_store(place, is_left=is_cut and not is_there)


def _into_database(store: Store, new: StorePlace) -> Found:
    """Fill a database, which is a store once all of it is there."""
    with closing(Store(new, moves_in=_fleet_at(store, new))) as copy, ExitStack() as stack:
        is_cut = bool(copy.marks.arriving())
        if not is_cut:
            store.check_not_moved()
        is_free = is_cut or is_empty(copy.database)
        demand(is_free, f"--to {new} holds a fleet already; name an empty database")
        with _told("--to", str(new)), _staying(store):
            stack.enter_context(copy.serving_alone())
            found = move_store(store, copy, str(new))
        with _told("--to", str(new)):  # here it may be whole, so the old one stays moved
            copy.marks.arrive()
        return found


def _fleet_at(store: Store, new: StorePlace) -> str:
    """The id of a store's fleet in another place: the same whenever a move there is asked."""
    if (known := store.marks.fleet_id()) and store.place.blobs == new.blobs:
        return known
    secrets = sorted(run.secret for run in store.runs())
    return sha256("\n".join([*secrets, new.blobs]).encode())[:32]


def _into_folder(
    store: Store, option: str, new: StorePlace, fill: Callable[[Store, Store], Found]
) -> Found:
    """Fill a new folder, which gets its name when it is whole."""
    place = Path(os.path.realpath(new.folder))
    check_out_parent(option, place)
    is_free = not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir()))
    demand(is_free, f"{option} {new.folder} is there; a new or an empty folder is expected")
    demand(
        place != Path.cwd(),
        f"{option} {new.folder} is the current folder, and would be replaced; name a new folder",
    )
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    with _told(option, str(new.folder)), _staying(store):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part.mkdir(mode=0o700)
            there = replace(new, folder=part)
            with closing(Store(there, moves_in=_fleet_at(store, new))) as copy:
                found = fill(store, copy)
                copy.marks.arrive()
            part.replace(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    with suppress(OSError):  # its name is there: after a power cut the move is asked again
        sync_folder(place.parent)
    return found


@contextmanager
def _staying(store: Store) -> Iterator[None]:
    """Keep a store where it is if the rest fails."""
    with ExitStack() as stack:
        stack.callback(store.marks.stay)
        yield
        stack.pop_all()


@contextmanager
def _told(option: str, new: str) -> Iterator[None]:
    try:
        yield
    except (StoreError, DatabaseDamaged, BlobDamaged) as error:
        what = "backup was written" if option == "--out" else "store was moved"
        raise Failed(f"no {what}: {error}") from error
    except (OSError, DatabaseAway, DatabaseBusy) as error:
        why = str(error).splitlines()[0]
        raise Failed(f"{option} {new} cannot be written: {why}") from error


OLDEST_S = 3600.0  # that a part is kept without another byte


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be.

    Attributes:
        files: By kind: `adapter`, `update`, `orphan` (belongs to no run), `part` (of an upload
            that was cut long ago).
        freed_bytes: By kind.
        kept_bytes: Of the blobs that stay.
    """

    files: dict[str, int]
    freed_bytes: dict[str, int]
    kept_bytes: int

    @property
    def freed(self) -> int:
        return sum(self.freed_bytes.values())


def prune(
    store: AtStore, *, run: str | None = None, keep_rounds: int | None = None, dry_run: bool = False
) -> Pruned:
    """Remove updates, old adapters and leftovers that nothing needs; say what that frees.

    A coordinator that serves does the same after each round. Updates go once their step is closed.
    Of a run that goes on the adapters of the last rounds stay, of a finished one only the first,
    the best and the last. Journals and reports stay.

    Args:
        store: Folder of a store that `create` made.
        run: Run id or name; by default all runs, and what belongs to none.
        keep_rounds: Newest rounds whose adapter stays, of finished runs too; by default as `serve`
            was told last, and of finished runs the first, best and last.
        dry_run: Only say what would be removed.

    Raises:
        WrongInput: No such store or run.
        Failed: Uploads kept coming, or a file cannot be removed.
    """
    with closing(open_store(store)) as opened:
        keep = rounds_kept(opened) if keep_rounds is None else keep_rounds
        limits_of(keep, LEAST_FREE)
        chosen = None if run is None else find_run(opened, run).run_id
        books = Books(opened, keep, chosen, is_thorough=keep_rounds is None)
        files = opened.blobs.present()
        gone = {name for name in files.keys() - books.kept() if books.may_go(name)}
        parts: list[int] = []
        try:
            if not dry_run:
                gone = remove(opened, gone, books.kept, PATIENCE_S)
            if chosen is None:
                parts = list(_parts(opened, dry_run))
        except Busy as error:
            raise Failed("uploads kept coming; prune again when fewer do") from error
        except OSError as error:
            raise Failed(f"cannot remove from the store {opened.place}: {error}") from error
        sizes = [(books.kind(name), files[name]) for name in gone]
        left = sum(size for name, size in files.items() if name not in gone)
    sizes += [("part", size) for size in parts]
    counts, freed = Counter(kind for kind, _ in sizes), Counter[str]()
    for kind, size in sizes:
        freed[kind] += size
    return Pruned(dict(counts), dict(freed), left)


def _parts(store: Store, dry_run: bool) -> Iterator[int]:
    """Remove parts of uploads that were cut long ago; a coordinator that serves does so itself.

    Of several that serve a shared store from this folder, each holds one for its uploads: what
    those that are gone left behind is nobody's.
    """
    with store.locks.alone(SERVE) as is_ours:
        if is_ours:
            yield from _old_parts(store.uploads, dry_run)
    beside = FileLocks(store.folder)
    for folder in sorted(one for one in store.folder.glob("uploads-*") if one.is_dir()):
        with beside.alone(f"{folder.name}.lock") as is_left:
            if is_left:
                yield from _old_parts(folder, dry_run)


def _old_parts(folder: Path, dry_run: bool) -> Iterator[int]:
    for path in folder.glob("*"):
        told = path.stat()
        if time.time() - told.st_mtime > OLDEST_S:
            yield told.st_size
            if not dry_run:
                path.unlink(missing_ok=True)
