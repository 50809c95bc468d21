"""Opening a store: made where there is none, brought up to date, its blobs those of its fleet."""

import logging
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager

from coordinator.storage.blobs.blobs import Blobs
from coordinator.storage.database import Database
from coordinator.storage.dialects import postgres
from coordinator.storage.errors import StoreError
from coordinator.storage.marks import UNSURE, Marks
from coordinator.storage.migrations.upgrade import (
    FOREIGN,
    HEAD,
    KNOWN,
    create,
    keep_copy,
    revision_of,
    upgrade,
)
from coordinator.storage.place import DATABASE, StorePlace

UPGRADE_S = 20.0  # another process may be bringing it up to date
LOG = logging.getLogger(__name__)

Alone = Callable[[float], AbstractContextManager[None]]  # that hold a store, after seconds at most


def bring_up(
    place: StorePlace,
    database: Database,
    blobs: Blobs,
    alone: Alone,
    is_new: bool,
    is_upgrading: bool,
) -> None:
    """Leave a database as the newest schema has it.

    Args:
        place: The store's.
        database: What lies there.
        blobs: Likewise.
        alone: Holds the store while it is brought up to date.
        is_new: Whether it is made where there is none.
        is_upgrading: Whether an older one is brought up to date.

    Raises:
        StoreError: There is none, or another smidgen wrote it.
    """
    revision = revision_of(database.engine)
    if place.is_shared and (lack := postgres.lack_of(database.engine)):
        raise StoreError(f"{place}: {lack}")
    if revision is None and not is_new:
        raise StoreError(f"no store at {place}; make one with `create`")
    if revision is None:
        _create(place, database, blobs)
    elif revision != HEAD:
        _check_older(place, revision, is_upgrading)
        with alone(UPGRADE_S):  # an older smidgen that serves it would not understand it
            _upgrade(place, database)


def _create(place: StorePlace, database: Database, blobs: Blobs) -> None:
    is_used = place.is_embedded and bool(blobs.present())
    if is_used and revision_of(database.engine) is None:  # nobody was quicker
        raise StoreError(
            f"store {place} holds adapters, but its database is empty; restore "
            f"{DATABASE} from a backup, or name another --store"
        )
    create(database.engine.url)


def _check_older(place: StorePlace, revision: str, is_upgrading: bool) -> None:
    if place.is_shared and revision == FOREIGN:
        raise StoreError(
            f"{place} holds tables of something else; a fleet takes a database of its own"
        )
    if revision not in KNOWN:
        raise StoreError(
            f"store {place} has schema {revision}, newer than the {HEAD} that this "
            "smidgen knows; install the smidgen that wrote it, or a newer one"
        )
    if not is_upgrading:
        copies = "" if place.is_shared else "copies the database and "
        raise StoreError(
            f"store {place} was written by an older smidgen (schema {revision}, now {HEAD}); start "
            f"`smidgen coordinator serve {' '.join(place.options)}` once: it {copies}brings it up "
            "to date"
        )


def _upgrade(place: StorePlace, database: Database) -> None:
    revision = revision_of(database.engine)
    if revision is None or revision == HEAD:  # another process was quicker
        return
    if not place.is_shared:
        copy = keep_copy(place.file)
        LOG.info("an older smidgen wrote this store: its database is copied to %s", copy)
    upgrade(database.engine.url, revision)
    LOG.info("the store has been brought from schema %s to %s", revision, HEAD)


def check_fleet(
    place: StorePlace,
    blobs: Blobs,
    marks: Marks,
    has_runs: Callable[[], bool],
    may_pair: bool,
    moves_in: str,
) -> None:
    """Refuse blobs of another fleet than the database's; a store without runs may be paired.

    The bucket is asked while nobody waits for this process. A pairing that was cut is known by
    the mark before its id, and gone on with.

    Args:
        place: The store's.
        blobs: What lies there.
        marks: What the database says of itself.
        has_runs: Whether there are runs.
        may_pair: Whether the two are paired where neither is with another.
        moves_in: Id of a fleet whose blobs a move may have brought before.

    Raises:
        StoreError: They belong to two fleets, or to none.
    """
    if place.is_embedded and not marks.fleet_id():
        return
    theirs, mine = blobs.fleet(), marks.fleet_id()
    if mine and not theirs:
        theirs = blobs.fleet()  # another process may just have paired them
    if mine and mine == theirs:
        if may_pair:  # who may write a fleet
            blobs.check_rights()
        return
    is_free = bool(marks.arriving()) or not has_runs()
    if is_free and (theirs in ("", mine.removeprefix(UNSURE)) or theirs == moves_in):
        if may_pair and (not mine or mine.startswith(UNSURE) or moves_in):
            _pair(blobs, marks, theirs or moves_in or secrets.token_hex(16), bool(moves_in))
            return
        if not theirs and (not mine or mine.startswith(UNSURE)):
            return  # there is nothing yet to take for another's
    whose = "are another fleet's" if theirs else "are not those that its fleet began with"
    whose = whose if mine or theirs else "are not those of its runs"
    raise StoreError(
        f"{place}: the blobs {whose} (a database holds one fleet, and its blobs lie in "
        "one place); name the --blobs that belong to this --database, or new ones of both; "
        "`smidgen coordinator move` takes blobs elsewhere"
    )


def _pair(blobs: Blobs, marks: Marks, fleet_id: str, is_moving: bool) -> None:
    """Give database and blobs the same id; of several that do so at once one says which."""
    blobs.check_rights()
    fleet_id = marks.pair(fleet_id, is_moving)
    blobs.claim(fleet_id)
    marks.paired(fleet_id)
