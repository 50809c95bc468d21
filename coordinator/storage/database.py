"""One database of a store: reading rows, and writes that are on disk when they return."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from threading import Lock
from typing import Any, TypeAlias, TypeVar, cast

import sqlalchemy as sql
from sqlalchemy.exc import DatabaseError, OperationalError

from coordinator.storage.together import Together
from edge_client.errors import WrongInput

Connection: TypeAlias = sql.Connection
Statement: TypeAlias = sql.Executable
T = TypeVar("T")
PRAGMAS = (
    "busy_timeout=10000",
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "cache_size=-512",  # KiB of each connection; the kernel caches the file
)


DatabaseBusy = OperationalError  # its disk is full, or somebody holds it too long
# What SQLite says of a file that is half there, overwritten, or gone.
DAMAGED = (
    *("malformed", "not a database", "disk I/O error", "no such table", "no such column"),
    "unable to open database file",
)


class DatabaseDamaged(WrongInput):
    """A database that cannot be read any more."""


class Database:
    """Safe to use from several threads.

    Args:
        url: SQLAlchemy's.

    Attributes:
        lack: Why it must not be used now, as `upkeep.database_file` has found; empty: nothing.
    """

    def __init__(self, url: str) -> None:
        self.engine = sql.create_engine(url)
        self.lack = ""
        self._writing: AbstractContextManager[Any] = nullcontext()
        if self.engine.dialect.name == "sqlite":
            sql.event.listen(self.engine, "connect", _prepare_sqlite)
            self._writing = Lock()
        self._together = Together(self._carry_out)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """Reads and writes of which all or none happen, one such at a time in this process.

        Raises:
            DatabaseDamaged: It cannot be read.
        """
        # SQLite lets one write at a time and has others sleep and look again; its lock wakes them.
        with self._writing, _told(), self.engine.begin() as connection:
            self._check()
            yield connection
            self._check()  # rather than say of what is lost that it is on disk

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Reads alone.

        Raises:
            DatabaseDamaged: It cannot be read.
        """
        self._check()
        with _told(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def held(self) -> Iterator[None]:
        """A connection that has read: as long as there is one, SQLite keeps its log.

        Whatever it meets, whoever wants something from the database will say so.
        """
        with ExitStack() as stack:
            with suppress(DatabaseError):
                connection = stack.enter_context(self.engine.connect())
                connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").all()
            yield

    def _check(self) -> None:
        if self.lack:
            raise DatabaseDamaged(self.lack)

    def write(self, *statements: sql.Executable) -> int:
        """Carry out statements in one transaction; the rows that the last one touched."""
        touched = 0
        with self.transaction() as connection:
            for statement in statements:
                touched = connection.execute(statement).rowcount
        return touched

    def share(self, work: Callable[[sql.Connection], T]) -> T:
        """Carry out reads and writes in a transaction that those who come at the same time share.

        All of them happen or none, whatever becomes of the others', and are on disk when this
        returns: a commit waits for the disk, and many that wait need it once.

        Args:
            work: Does nothing but ask the database; it may be called twice.
        """
        done, error = self._together(work)
        if error is not None:
            raise error
        return cast(T, done)

    def _carry_out(
        self, works: Sequence[Callable[[sql.Connection], Any]]
    ) -> list[tuple[Any, Exception | None]]:
        try:
            with self.transaction() as connection:
                return [(work(connection), None) for work in works]
        except Exception as error:
            if len(works) == 1:
                return [(None, error)]
        return [self._carry_out([work])[0] for work in works]  # one of them fails: each by itself

    def write_many(self, statement: sql.Executable, rows: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a statement once per row of parameters, in one transaction."""
        if rows:
            with self.transaction() as connection:
                connection.execute(statement, list(rows))

    def rows(self, statement: sql.Select[Any]) -> list[Mapping[str, Any]]:
        with self.reading() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        said = str(error.orig)
        if not any(words in said for words in DAMAGED):
            raise
        # Connections differ in how they find the same damage: one sentence, said once, for all.
        how = "damaged" if any(words in said for words in DAMAGED[:2]) else f"unreadable ({said})"
        raise DatabaseDamaged(
            f"the store's database is {how}; restore the store from a backup, "
            "`smidgen coordinator verify` says what is wrong with it"
        ) from error


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        _set(cursor, pragma)
    cursor.close()


def _set(cursor: Any, pragma: str) -> None:
    """SQLite's own wait does not count where two turn on the write-ahead log at once."""
    (wait_ms,) = cursor.execute("PRAGMA busy_timeout").fetchone()
    end = time.monotonic() + wait_ms / 1000
    while True:
        try:
            cursor.execute(f"PRAGMA {pragma}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
