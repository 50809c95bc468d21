"""Store locks that hold across processes; a killed process holds none."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import sqlalchemy as sql

from smidgen.edge_client.files import private

SERVE = "serve.lock"  # held by the process that serves; where there may be several, shared
CLAIMS = "blobs.lock"  # shared by who writes blobs
LEAD = "lead"  # of several that serve one fleet, held by the one that carries rounds on
AGAIN_S = 0.05


class Locks(Protocol):
    """The locks of one store, by name."""

    def alone(self, name: str, patience_s: float = 0.0) -> AbstractContextManager[bool]:
        """Hold a lock that nobody else holds or shares; whether that is so within the time."""
        ...

    def shared(self, name: str) -> AbstractContextManager[None]:
        """Share a lock with whoever shares it too; waits for who holds it alone."""
        ...

    def keep(self, connection: sql.Connection, name: str) -> None:
        """Make sure that what this process shares of a lock was held all the time.

        Nobody holds it alone before the transaction has ended.

        Raises:
            DatabaseAway: It was lost, as when its server was started again.
        """
        ...


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
