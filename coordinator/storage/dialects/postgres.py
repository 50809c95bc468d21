"""PostgreSQL: its settings, one writer at a time, locks that all machines see, who leads.

Writers take turns by a lock of their transaction, as in SQLite. So a read followed by a write stays
consistent, also with several processes, and revisions grow in the order of commits.

The leader carries the rounds on. Each process has a thread with a connection of its own; without a
leader, the first that notices leads, for as long as its connection lives: a process that is killed,
stopped or cut off loses the lead within seconds. Writes are notified to all others at once.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Any, Protocol

import sqlalchemy as sql
from sqlalchemy.exc import (
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,
)

from smidgen.coordinator.storage.dialects.sqlite import AGAIN_S, LEAD, SERVE
from smidgen.edge_client.errors import Failed, WrongInput, installing

BEAT_S = 0.5  # between two looks at whether somebody leads
SILENCE_S = 6  # after which the server ends the connection of a process that stands still
LOG = logging.getLogger(__name__)


class Lead(Protocol):
    """Whether this process carries rounds on.

    Attributes:
        is_here: It does.
    """

    is_here: bool

    def begin(self, on_news: Callable[[], object]) -> None:
        """Try to get the lead; be told, in a thread, when it came or others have written."""

    def end(self) -> None: ...


class Sole:
    """The lead of a process that has the store for itself."""

    is_here = True

    def begin(self, on_news: Callable[[], object]) -> None:
        """Nobody else writes."""

    def end(self) -> None:
        """Nobody else wants it."""


class Standby:
    """The lead of one of many; safe to use from several threads.

    Args:
        engine: Opens connections.

    Attributes:
        is_here: Whether this process leads, as far as it knows; what is written does not hang on
            it: a place in a journal is written once.
    """

    def __init__(self, engine: sql.Engine) -> None:
        self._engine, self.is_here = engine, False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standby", daemon=True)
        self._on_news: Callable[[], object] = lambda: None

    def begin(self, on_news: Callable[[], object]) -> None:
        """Try to get the lead; be told, in a thread, when it came or others have written."""
        self._on_news = on_news
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        said = ""
        while not self._ending.is_set():
            try:
                with self._connected() as connection:
                    said = ""
                    self._stand(connection)
            except (SQLAlchemyError, psycopg.Error) as error:
                if (reason := told(error)) != said:
                    LOG.warning("this process cannot lead, and hears no news: %s", reason)
                said = reason
            self._ending.wait(BEAT_S)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection of psycopg's that nobody else gets; all that it holds ends with it."""
        raw = self._engine.raw_connection()
        connection: Any = raw.driver_connection
        raw.detach()
        try:
            connection.autocommit = True
            connection.execute(f"SET idle_session_timeout = '{SILENCE_S}s'")
            connection.execute("SELECT pg_advisory_lock_shared(%s)", [number_of(SERVE)])
            connection.execute(f"LISTEN {CHANNEL}")
            yield connection
        finally:
            self.is_here = False
            connection.close()

    def _stand(self, connection: Any) -> None:
        wanted = "SELECT pg_try_advisory_lock(%s)"
        while not self._ending.is_set():
            if self.is_here:
                connection.execute("SELECT 1")  # or the server has ended it
            elif connection.execute(wanted, [number_of(LEAD)]).fetchone()[0]:
                self.is_here = True
                self._on_news()
            for _ in connection.notifies(timeout=BEAT_S, stop_after=1):
                self._on_news()


EXPECTED = "postgresql://USER@HOST/NAME is expected"
PORT = 5432
CHANNEL = "smidgen"  # on which every commit is told
WRITE = "write"  # held by who writes, to the end of its transaction
HELD = "8s"  # that it may do nothing meanwhile
CONNECTIONS, MORE = 8, 16  # kept, and beside them where many ask at once
CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms: keepalives are not sent while a question is on its way
    "application_name": "smidgen",
}
OLDEST = 14  # of PostgreSQL's versions: before, it does not end who is silent
# A machine that is gone loses its locks within seconds, a process that hangs its transaction, and
# nobody waits longer for another than with SQLite.
SETTINGS = (
    *("synchronous_commit = on", "lock_timeout = '10s'"),
    *("idle_in_transaction_session_timeout = '30s'",),
    *("tcp_keepalives_idle = 5", "tcp_keepalives_interval = 1", "tcp_keepalives_count = 3"),
)
ADVICE = {
    "password": "give the role's password in PGPASSWORD or ~/.pgpass",
    "does not exist": "make it (createuser, createdb), or name another --database",
    "no pg_hba.conf entry": "let this machine in (pg_hba.conf)",
    "lock timeout": "somebody else writes for long; try again",
    "too many": "let it take more (max_connections), or end some processes",
    "permission denied": "give the role its own database: ALTER DATABASE ... OWNER TO ...",
}
UNREACHED_SAID = (
    "connection",
    "could not translate",
    "timeout expired",
    "starting up",
    "no answer",
)


def url_of(text: str, option: str = "--database") -> sql.URL:
    """A URL as it is typed, without a word of it in any error: it may hold a password.

    Args:
        text: The URL.
        option: What it was given by.

    Raises:
        WrongInput: It is another one, or a package is missing.
    """
    try:
        url = sql.make_url(text)
    except (sql.exc.ArgumentError, ValueError) as error:
        raise WrongInput(f"{option} is not a URL; {EXPECTED}") from error
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or not url.database:
        raise WrongInput(f"{option} {url.drivername}: {EXPECTED}")
    if "@" in f"{url.host}{url.database}":  # the rest of a password, which is not to be shown
        raise WrongInput(f"{option} has an @ after its host; write one of a password as %40")
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise WrongInput(f"{option} needs psycopg; {installing('shared')}") from error
    return url.set(drivername="postgresql+psycopg")


def masked(url: sql.URL) -> str:
    """A URL for people, without its password."""
    shown = url.set(drivername="postgresql", query={})
    return shown.render_as_string(hide_password=True)


def without_password(url: sql.URL) -> str:
    """A URL for a command line, on which a password would be seen."""
    host, port, database = url.host, url.port, url.database
    made = sql.URL.create("postgresql", url.username, host=host, port=port, database=database)
    return made.render_as_string()


def is_same(one: sql.URL, other: sql.URL) -> bool:
    """Whether two URLs name one database, whoever opens it."""
    ports = one.port or PORT, other.port or PORT
    return (one.host, ports[0], one.database) == (other.host, ports[1], other.database)


def engine_of(url: sql.URL) -> sql.Engine:
    """Opens connections; one that a server broke off meanwhile is replaced before it is used."""
    engine = sql.create_engine(
        url,
        pool_pre_ping=True,
        pool_size=CONNECTIONS,
        max_overflow=MORE,
        connect_args=CONNECT,
        hide_parameters=True,  # what a statement is about stays out of logs
    )
    sql.event.listen(engine, "connect", _prepare)
    return engine


class DatabaseAway(Failed):
    """A server that does not answer, or breaks off, or that somebody else keeps for too long."""


class StoreMoved(DatabaseAway):
    """A store that was moved elsewhere, or brought up to date, while somebody had it open."""


@contextmanager
def answering(engine: sql.Engine) -> Iterator[None]:
    """Ask a server something.

    Raises:
        DatabaseAway: It does not answer.
    """
    try:
        yield
    except (OperationalError, InterfaceError, InternalError, TimeoutError) as error:
        raise DatabaseAway(f"{masked(engine.url)}: {told(error)}") from error


def begin_long(connection: sql.Connection) -> None:
    """Let a transaction wait for another database as long as that takes."""
    connection.execute(sql.text("SET LOCAL idle_in_transaction_session_timeout = 0"))


def begin_writing(connection: sql.Connection) -> None:
    """Wait for one's turn to write, to the end of the transaction, of which others then hear.

    Who stands still with it loses it sooner than others give up to wait.
    """
    idle = sql.func.set_config("idle_in_transaction_session_timeout", HELD, True)
    connection.execute(sql.select(idle, sql.func.pg_advisory_xact_lock(number_of(WRITE))))
    connection.execute(sql.select(sql.func.pg_notify(CHANNEL, "")))


def lack_of(engine: sql.Engine) -> str:
    """Why a server that has answered cannot hold a fleet; empty if it can."""
    version = int((engine.dialect.server_version_info or (OLDEST,))[0])
    told = f"its server is PostgreSQL {version}; {OLDEST} or newer is expected"
    return told if version < OLDEST else ""


def told(error: Exception) -> str:
    """What went wrong with a server, in a line, and what to do; holds no password."""
    reason = str(getattr(error, "orig", None) or error).strip().splitlines() or ["no answer"]
    first = reason[0].partition("FATAL:")[2].strip() or reason[0]
    advice = [words for said, words in ADVICE.items() if said in first]
    if any(said in first for said in UNREACHED_SAID):
        advice.append("start it, or name another --database")
    return "; ".join([first, *advice[:1]])


def _prepare(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        for setting in SETTINGS:
            cursor.execute(f"SET {setting}")
    connection.commit()


class AdvisoryLocks:
    """Locks of a database, each on a connection of its own: it ends with that.

    Args:
        engine: Opens connections.
    """

    def __init__(self, engine: sql.Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._shared: dict[str, set[int]] = {}  # by name, the server's processes that share it

    @contextmanager
    def alone(self, name: str, patience_s: float = 0.0) -> Iterator[bool]:
        """Hold a lock that nobody else holds or shares; whether that is so within the time."""
        wanted = sql.select(sql.func.pg_try_advisory_lock(number_of(name)))
        end = time.monotonic() + patience_s
        with self._connected() as connection:
            while not (is_held := bool(connection.scalar(wanted))) and time.monotonic() < end:
                time.sleep(AGAIN_S)
            yield is_held

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Share a lock with whoever shares it too; waits for who holds it alone."""
        wanted = sql.func.pg_advisory_lock_shared(number_of(name))
        with self._connected() as connection:
            process = connection.execute(sql.select(wanted, sql.func.pg_backend_pid())).one()[1]
            with self._lock:
                self._shared.setdefault(name, set()).add(process)
            try:
                yield
            finally:
                with self._lock:
                    self._shared[name].discard(process)

    def keep(self, connection: sql.Connection, name: str) -> None:
        """Make sure that what this process shares of a lock was held all the time.

        Nobody holds it alone before the transaction has ended.

        Raises:
            DatabaseAway: It was lost, as when its server was started again.
        """
        with self._lock:
            processes = set(self._shared.get(name, ()))
        if not processes:
            return
        number = number_of(name)
        here = sql.func.pg_try_advisory_xact_lock_shared(number)
        held = sql.text(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = :number"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND pid = ANY(:processes)"
        )
        asked = {"number": number, "processes": sorted(processes)}
        is_here = bool(connection.scalar(sql.select(here)))  # first: nobody comes in between
        there = set(connection.scalars(held, asked)) if is_here else set[int]()
        with self._lock:
            lost = (processes - there) & self._shared[name]  # others have let go of it meanwhile
        if lost:
            raise DatabaseAway(f"{masked(self._engine.url)}: a lock was lost; try again")

    @contextmanager
    def _connected(self) -> Iterator[sql.Connection]:
        with answering(self._engine), ExitStack() as stack:
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            stack.callback(_left, connection)
            yield connection


def _left(connection: sql.Connection) -> None:
    """Let go of a connection and its locks; one that broke off holds none."""
    with suppress(SQLAlchemyError):
        connection.execute(sql.select(sql.func.pg_advisory_unlock_all()))
    with suppress(SQLAlchemyError):
        connection.close()


def number_of(name: str) -> int:
    """What PostgreSQL calls a lock."""
    return int.from_bytes(
        hashlib.sha256(f"smidgen {name}".encode()).digest()[:8], "big", signed=True
    )
