"""SQLite: its settings, the messages by which it reports damage, and locks between processes.

A killed process holds no lock.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import sqlalchemy as sql

from smidgen.edge_client.files import private

SERVE = "serve.lock"  # held by the process that serves; where there may be several, shared
CLAIMS = "blobs.lock"  # shared by who writes blobs
LEAD = "lead"  # of several that serve one fleet, held by the one that carries rounds on
AGAIN_S = 0.05

log = logging.getLogger(__name__)


class Locks(Protocol):
    """The locks of one store, by name."""

    def alone(self, name: str, patience_s: float = 0.0) -> AbstractContextManager[bool]:
        """Hold a lock that nobody else holds or shares; whether that is so within the time."""

    def shared(self, name: str) -> AbstractContextManager[None]:
        """Share a lock with whoever shares it too; waits for who holds it alone."""

    def keep(self, connection: sql.Connection, name: str) -> None:
        """Make sure that what this process shares of a lock was held all the time.

        Nobody holds it alone before the transaction has ended.

        Raises:
            DatabaseAway: It was lost, as when its server was started again.
        """


class FileLocks:
    """Locks of the kernel on files of a folder: of processes of one machine.

    Args:
        folder: The store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def alone(self, name: str, patience_s: float = 0.0) -> Iterator[bool]:
        """Hold a lock that nobody else holds or shares; whether that is so within the time."""
        end = time.monotonic() + patience_s
        with open(self._folder / name, "a", opener=private) as file:
            is_held = False
            while not is_held:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_held = True
                if is_held or time.monotonic() >= end:
                    break
                time.sleep(AGAIN_S)
            yield is_held

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Share a lock with whoever shares it too; waits for who holds it alone.

        In a folder that may only be read a file that is not there is nobody's lock.
        """
        path = self._folder / name
        if not path.exists() and not os.access(self._folder, os.W_OK):
            yield
            return
        how = "a" if not path.exists() or os.access(path, os.W_OK) else "r"
        with open(path, how, opener=private) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def keep(self, connection: sql.Connection, name: str) -> None:
        """A kernel loses none."""


READING = (
    "busy_timeout=10000",
    "cache_size=-512",  # KiB of each connection; the kernel caches the file
)
PRAGMAS = (*READING, "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON")
SCRUB_S = 10.0  # for who reads the write-ahead log meanwhile
# What it says of a file that is half there, overwritten, or gone.
DAMAGED = (
    *("malformed", "not a database", "disk I/O error", "no such table", "no such column"),
    "unable to open database file",
)
ADVICE = {  # for what it says where it is whole and cannot be used now
    "database is locked": "somebody else holds it for long, such as a backup; try again",
    "disk is full": "make room on its disk and try again",
    "readonly database": "let this user write to its folder and try again",
}


def engine_of(url: sql.URL) -> sql.Engine:
    """Of a file; where it or its folder may not be written, one that only reads.

    Then a log of somebody who writes is read where there is one (SQLite needs its `-shm` file for
    that); where there is none, SQLite looks for none and writes nothing beside the file.
    """
    file = Path(str(url.database))
    pragmas: tuple[str, ...] = PRAGMAS
    if file.is_file() and not all(os.access(path, os.W_OK) for path in (file, file.parent)):
        log, pragmas = file.with_name(f"{file.name}-wal"), READING
        has_log = log.is_file() and log.stat().st_size > 0
        how = {"mode": "ro"} if has_log else {"immutable": "1"}
        url = url.set(database=f"file:{quote(str(file.absolute()))}", query=how | {"uri": "true"})
    engine = sql.create_engine(url, hide_parameters=True)  # secrets stay out of logs
    sql.event.listen(engine, "connect", partial(_prepare, pragmas))
    return engine


def begin(connection: sql.Connection) -> None:
    """See from here on what is there now, and let others write: sqlite3 begins no reads itself."""
    connection.exec_driver_sql("BEGIN")


def lack_of(said: str) -> str:
    """How a database is damaged, by what SQLite says; empty where it says something else."""
    if not any(words in said for words in DAMAGED):
        return ""
    # Connections differ in how they find the same damage: one sentence, said once, for all.
    how = "damaged" if any(words in said for words in DAMAGED[:2]) else f"unreadable ({said})"
    return (
        f"the store's database is {how}; restore the store from a backup, "
        "`smidgen coordinator verify` says what is wrong with it"
    )


def told(said: str) -> str:
    """Why a database cannot be used now, and what to do; empty where SQLite says something else."""
    advice = [words for known, words in ADVICE.items() if known in said]
    return f"the store's database: {said}; {advice[0]}" if advice else ""


def scrub(connection: sql.Connection) -> bool:
    """Empty the write-ahead log, which holds what was deleted since; whether nobody read it then.

    In the database itself deleted rows are overwritten (`secure_delete`).
    """
    end = time.monotonic() + SCRUB_S
    while connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]:
        if time.monotonic() > end:
            log.warning("what was deleted stays in the database's log until nobody reads that")
            return False
        time.sleep(0.05)
    return True


def _prepare(pragmas: tuple[str, ...], connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in pragmas:
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
