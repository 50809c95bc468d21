"""Leader election among a fleet's coordinators, and notifications between them.

The leader carries the rounds on. Each process has a thread with a connection of its own; without a
leader, the first that notices leads, for as long as its connection lives: a process that is killed,
stopped or cut off loses the lead within seconds. Writes are notified to all others at once.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from smidgen.coordinator.storage.dialects.locks import LEAD, SERVE
from smidgen.coordinator.storage.dialects.postgres import CHANNEL, number_of, told

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
        ...

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
