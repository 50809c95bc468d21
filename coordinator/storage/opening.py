"""Opening a store: created where there is none; refused if another revision of smidgen wrote it.

The store's metadata is a table of one row.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sql

from smidgen.coordinator.storage.blobs import Blobs
from smidgen.coordinator.storage.database import (
    DATABASE,
    Connection,
    Database,
    StoreError,
    StorePlace,
)
from smidgen.coordinator.storage.dialects import postgres
from smidgen.coordinator.storage.schema import METADATA, REVISION, STORE, VERSION

UNSURE = "~"  # before the id of a fleet whose blobs do not have it yet


class Marks:
    """The marks of one store; read anew each time, for other processes set them too.

    Args:
        database: Its database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def fleet_id(self) -> str:
        """The id of its fleet, where its blobs could be another's."""
        return str(self._row("fleet_id") or "")

    def pair(self, fleet_id: str, is_moving: bool) -> str:
        """Take an id, of which is not sure yet whether the blobs have it; the one it has then.

        Args:
            fleet_id: What is proposed.
            is_moving: Whether it takes the place of another.
        """
        mine = STORE.c.fleet_id
        with self._database.transaction() as connection:
            unpaired = sql.update(STORE).where(sql.or_(mine == "", sql.literal(is_moving)))
            connection.execute(unpaired.values(fleet_id=f"{UNSURE}{fleet_id}"))
            return str(connection.execute(sql.select(mine)).scalar_one()).removeprefix(UNSURE)

    def paired(self, fleet_id: str) -> None:
        """Note that the blobs have its id too."""
        self._set(fleet_id=fleet_id)

    def watch(self) -> None:
        """Note that heads lie beside the database from now on."""
        self._set(is_watched=True)

    def is_watched(self) -> bool:
        """Whether heads have to lie beside the database."""
        return bool(self._row("is_watched"))

    def secure(self, is_secured: bool) -> None:
        """Note whether certificates lie beside the database from now on."""
        if self.is_secured() != is_secured:
            self._set(is_secured=is_secured)

    def is_secured(self) -> bool:
        """Whether certificates have to lie beside the database."""
        return bool(self._row("is_secured"))

    def keep_rounds(self) -> int | None:
        """How many of a run's newest rounds keep their adapter; None where nobody said so."""
        found = self._row("keep_rounds")
        return None if found is None else int(found)

    def note_keep_rounds(self, keep_rounds: int | None) -> None:
        """Note how many rounds keep their adapter, for all who remove any."""
        if self.keep_rounds() != keep_rounds:
            self._set(keep_rounds=keep_rounds)

    @contextmanager
    def leaving(self, place: str) -> Iterator[Connection]:
        """Reads of a store that nobody writes to meanwhile; it is in another place when this ends.

        Args:
            place: Where it is then.
        """
        with self._database.transaction(is_last=True) as connection:
            connection.execute(sql.update(STORE).values(moved_to=place))
            yield connection

    def moved_to(self) -> str:
        """Where it was moved; empty: nowhere."""
        return str(self._row("moved_to") or "")

    def arriving(self) -> str:
        """Where a move brings it from, until all of it is here; empty: from nowhere."""
        return str(self._row("arriving") or "")

    def arrive(self) -> None:
        """Be whole: the store that a move has brought here goes on in this place alone."""
        if self.arriving():
            self._set(arriving="")

    def stay(self) -> None:
        if self.moved_to():
            self._set(moved_to="")

    def _row(self, name: str) -> Any:
        return next((row[name] for row in self._database.rows(sql.select(STORE))), None)

    def _set(self, **values: Any) -> None:
        self._database.write(sql.update(STORE).values(**values))


FOREIGN = "of no version"  # tables, and nothing that says whose


def open_schema(place: StorePlace, database: Database, blobs: Blobs, is_new: bool) -> None:
    """Make sure that a database has the tables that this smidgen writes.

    Args:
        place: Where the store lies.
        database: Its database.
        blobs: Its blobs.
        is_new: Whether it is made where there is none.

    Raises:
        StoreError: There is none, or another smidgen wrote it.
    """
    with database.engine.connect() as connection:
        revision = _revision(connection)
    if place.is_shared and (lack := postgres.lack_of(database.engine)):
        raise StoreError(f"{place}: {lack}")
    if revision is None and not is_new:
        raise StoreError(f"no store at {place}; make one with `create`")
    if revision is None:
        _create(place, database, blobs)
    elif place.is_shared and revision == FOREIGN:
        raise StoreError(
            f"{place} holds tables of something else; a fleet takes a database of its own"
        )
    elif revision != REVISION:
        raise StoreError(
            f"store {place} has schema {revision}, and this smidgen knows {REVISION} alone; use "
            "the smidgen that wrote it, or name another --store"
        )


def _revision(connection: sql.Connection) -> str | None:
    """The revision of a database; None for one without tables."""
    names = sql.inspect(connection).get_table_names()
    if VERSION.name in names:
        revision = connection.scalar(sql.select(VERSION.c.version_num))
        return None if revision is None else str(revision)
    return FOREIGN if names else None


def _create(place: StorePlace, database: Database, blobs: Blobs) -> None:
    is_used = place.is_embedded and bool(blobs.present())
    with _whole(database.engine.url) as connection:
        if _revision(connection) is not None:  # another process was quicker
            return
        if is_used:
            raise StoreError(
                f"store {place} holds adapters, but its database is empty; restore "
                f"{DATABASE} from a backup, or name another --store"
            )
        METADATA.create_all(connection)
        connection.execute(sql.insert(STORE).values(is_watched=False))
        connection.execute(sql.insert(VERSION).values(version_num=REVISION))


@contextmanager
def _whole(url: sql.URL) -> Iterator[sql.Connection]:
    """One transaction, begun before anything is read, in which tables may be made too.

    After a power cut there are all tables or none, and of several processes one makes them.
    """
    engine = sql.create_engine(url, poolclass=sql.NullPool, hide_parameters=True)
    if engine.dialect.name == "sqlite":
        # sqlite3 would begin no transaction before a table is made.
        sql.event.listen(engine, "connect", _leave_transactions)
        sql.event.listen(engine, "begin", _begin)
    with engine.begin() as connection:
        if engine.dialect.name != "sqlite":
            postgres.begin_writing(connection)
        yield connection
    engine.dispose()


def _leave_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA busy_timeout=10000")
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: sql.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


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
