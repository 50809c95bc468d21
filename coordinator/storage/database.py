"""A store's place and its database: reading rows, and writes that are on disk when they return.

    StorePlace(Path("here"))
    StorePlace(Path("here"), "postgresql://fleet@db.example/fleet", "s3://fleet/blobs")

The folder always exists and belongs to one machine: it holds the rest, certificates, uploads in
progress and copies of blobs. `storage.dialects` holds all that differs between SQLite and
PostgreSQL. Group commit: one transaction for concurrent writers.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar, cast

import sqlalchemy as sql
from sqlalchemy.exc import DatabaseError, DataError, SQLAlchemyError

from smidgen.coordinator.storage.blobs import Blobs, FolderBlobs
from smidgen.coordinator.storage.bucket import BucketBlobs
from smidgen.coordinator.storage.dialects import postgres, sqlite
from smidgen.coordinator.storage.dialects.postgres import Lead, Sole, Standby
from smidgen.coordinator.storage.dialects.sqlite import FileLocks, Locks
from smidgen.edge_client.errors import Failed, WrongInput, demand


class StoreError(WrongInput):
    """A store that cannot be opened or does not hold what was asked for."""


class Conflict(StoreError):
    """A place of a journal that another process has written, or folded away."""


DATABASE = "coordinator.db"
BLOBS = "blobs"


@dataclass(frozen=True)
class StorePlace:
    """Where a store lies; as text it is what people typed, without a password.

    Attributes:
        folder: Of this machine.
        database: URL of a PostgreSQL database; empty: SQLite's, in the folder.
        blobs: `s3://BUCKET/PREFIX`; empty: in the folder.

    Raises:
        WrongInput: A URL is another one, or a package is missing.
    """

    folder: Path
    database: str = field(default="", repr=False)
    blobs: str = ""

    def __post_init__(self) -> None:
        if self.database:
            postgres.url_of(self.database)
        check_blobs(self.blobs)

    def __str__(self) -> str:
        named = postgres.masked(postgres.url_of(self.database)) if self.database else self.folder
        return f"{named} with {self.blobs}" if self.blobs else str(named)

    @property
    def options(self) -> list[str]:
        """What names it on a command line; a password is left out."""
        named = ["--store", str(self.folder)]
        if self.database:
            named += ["--database", postgres.without_password(postgres.url_of(self.database))]
        return [*named, "--blobs", self.blobs] if self.blobs else named

    @property
    def is_shared(self) -> bool:
        """Whether others may use the database from other machines."""
        return bool(self.database)

    @property
    def is_embedded(self) -> bool:
        """Whether all of it lies in the folder."""
        return not self.database and not self.blobs

    @property
    def file(self) -> Path:
        """SQLite's file, where the database is one."""
        return self.folder / DATABASE

    @property
    def url(self) -> sql.URL:
        if self.database:
            return postgres.url_of(self.database)
        return sql.URL.create("sqlite", database=str(self.file))

    def open_blobs(self) -> Blobs:
        if self.blobs:
            return BucketBlobs(self.blobs, self.folder)
        return FolderBlobs(self.folder / BLOBS)


def check_blobs(text: str, option: str = "--blobs") -> None:
    """Refuse what is no place of blobs.

    Raises:
        WrongInput: Names the option.
    """
    parts = re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=-]+)*/?", text)
    demand(
        not text or parts is not None,
        f"{option} {text.rpartition('@')[2][:80]!r}: s3://BUCKET/PREFIX is expected, without "
        "credentials: they belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )


def place_of(store: str | Path | StorePlace, database: str = "", blobs: str = "") -> StorePlace:
    """A store's place, by a folder too, with what is shared."""
    return store if isinstance(store, StorePlace) else StorePlace(Path(store), database, blobs)


A = TypeVar("A")
B = TypeVar("B")


class Together(Generic[A, B]):
    """Collects what threads ask while it is busy; whoever comes first then does it for all.

    Args:
        do: Does it for all that asked, in the order in which they did; an answer for each. If it
            raises, each of them hears so.
    """

    def __init__(self, do: Callable[[Sequence[A]], Sequence[B]]) -> None:
        self._do = do
        self._asked: deque[tuple[A, Future[B]]] = deque()
        self._doing = threading.Lock()

    def __call__(self, what: A) -> B:
        """Have it done; what came of it."""
        mine = Future[B]()
        self._asked.append((what, mine))
        with self._doing:
            if not mine.done():
                self._do_all()
        return mine.result()

    def __len__(self) -> int:
        return len(self._asked)

    def _do_all(self) -> None:
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        try:
            answered = list(zip(asked, self._do([what for what, _ in asked]), strict=True))
        except BaseException as error:  # else those who wait would do so for ever
            for _, waiting in asked:
                waiting.set_exception(error)
        else:
            for (_, waiting), answer in answered:
                waiting.set_result(answer)


Connection: TypeAlias = sql.Connection
Statement: TypeAlias = sql.Executable
T = TypeVar("T")
BadValue = DataError  # which it does not take, such as the character 0 in a text


class DatabaseDamaged(WrongInput):
    """A database that cannot be read any more."""


class DatabaseBusy(Failed):
    """SQLite's file where its disk is full or read-only, or somebody holds it too long."""


class Database:
    """SQLite's or PostgreSQL's; safe to use from several threads.

    Args:
        url: SQLAlchemy's.

    Attributes:
        is_file: Whether it is SQLite's.
        lack: Why it must not be used now, as `upkeep.backup` has found; empty: nothing.
        look: Called at the end of each transaction: nothing is written if it raises.
    """

    def __init__(self, url: str | sql.URL) -> None:
        url = sql.make_url(url)
        self.is_file, self._url = url.get_backend_name() == "sqlite", url
        self.engine = sqlite.engine_of(url) if self.is_file else postgres.engine_of(url)
        self.lack = ""
        self.look: Callable[[sql.Connection], object] = lambda _: None
        self._writing = Lock()
        self._together = Together(self._carry_out)

    @property
    def name(self) -> str:
        return str(self._url.database) if self.is_file else postgres.masked(self.engine.url)

    def locks(self, folder: Path) -> Locks:
        """Locks that all see who use this database; of SQLite's they lie in the store's folder."""
        return FileLocks(folder) if self.is_file else postgres.AdvisoryLocks(self.engine)

    def lead(self) -> Lead:
        """Whether this process carries rounds on, of those that use this database."""
        return Sole() if self.is_file else Standby(self.engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def transaction(self, is_last: bool = False) -> Iterator[sql.Connection]:
        """Reads and writes of which all or none happen, one such at a time.

        Args:
            is_last: Whether it is the one that says where all of it has gone.

        Raises:
            DatabaseDamaged: It cannot be read.
            DatabaseBusy: Nothing can be written now.
        """
        # SQLite lets one write at a time and has others sleep and look again; the lock wakes them.
        with self._writing, self._told(), self.engine.begin() as connection:
            self._check()
            if not self.is_file:
                postgres.begin_writing(connection)
            yield connection
            if not is_last:
                self.look(connection)  # nobody else writes by now, with SQLite too
            self._check()  # rather than say of what is lost that it is on disk

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Reads alone.

        Raises:
            DatabaseDamaged: It cannot be read.
        """
        self._check()
        with self._told(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[sql.Connection]:
        """Reads that all see the same moment, whatever others write meanwhile."""
        with self._told(), self.engine.connect() as connection:
            if self.is_file:
                sqlite.begin(connection)
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    def answers(self) -> bool:
        """Whether it can be asked now."""
        try:
            with self.engine.connect() as connection:
                return connection.scalar(sql.select(1)) == 1
        except SQLAlchemyError:
            return False

    def apart_s(self, now_s: Callable[[], float]) -> float:
        """How far a clock is ahead of the server's at least; 0 where there is no server.

        Args:
            now_s: The clock; the time that the answer takes is not counted as a difference.
        """
        if self.is_file:
            return 0.0
        with self.reading() as connection:
            connection.execute(sql.select(1))  # connecting takes its time
            before_s = now_s()
            told = connection.execute(sql.select(sql.func.clock_timestamp())).scalar_one()
            after_s = now_s()
        theirs_s = float(told.timestamp())
        return max(0.0, before_s - theirs_s) + min(0.0, after_s - theirs_s)

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

    def scrub(self) -> bool:
        """Leave nothing of what was deleted in this file or its log; whether that is so.

        PostgreSQL keeps it until it vacuums, and in its own log.
        """
        if not self.is_file:
            return False
        with self.engine.connect() as connection:
            return sqlite.scrub(connection)

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

    def each(self, statement: sql.Select[Any]) -> Iterator[Mapping[Any, Any]]:
        """Rows one after another, of which few are held at once; for many that are read to the end.

        SQLite's; PostgreSQL sends all of them.
        """
        with self.reading() as connection:
            yield from connection.execute(statement).mappings()

    @contextmanager
    def _told(self) -> Iterator[None]:
        if not self.is_file:
            with postgres.answering(self.engine):
                yield
            return
        try:
            yield
        except DatabaseError as error:
            if lack := sqlite.lack_of(str(error.orig)):
                raise DatabaseDamaged(lack) from error
            if busy := sqlite.told(str(error.orig)):
                raise DatabaseBusy(busy) from error
            raise
