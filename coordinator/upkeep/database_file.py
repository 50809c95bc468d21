"""Noticing within a second that a database is overwritten, cut or replaced while it is served.

SQLite reads what it holds in memory from there, so it would notice when it needs a page that it
does not hold, and writes to a file that was replaced would go where nobody looks. A look costs a
few calls of the kernel, and does not find a page that was changed in the middle: SQLite does, when
it reads it, and `coordinator verify`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from coordinator.storage.database import Database, DatabaseDamaged

MAGIC = b"SQLite format 3\0"
WAL_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # by the order of bytes of its checksums


class DatabaseFile:
    """The file of one database, as it was first seen; for one thread.

    Args:
        database: SQLite's; of another kind nothing is looked at.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._path = Path(database.name) if database.is_file else None
        self._place: tuple[int, int] | None = None
        self._size_bytes, self._has_log = 0, False
        # Never closed: that would take away every lock of this process on the file, SQLite's too,
        # and the next process that leaves the database would take itself for the last one.
        self._handle: int | None = None

    def look(self) -> None:
        """Make sure that it is the file that it was; until it is, nobody reads or writes it.

        Raises:
            DatabaseDamaged: It is not.
        """
        if self._path is None:
            return
        with self._database.held():
            lack = next(self._lacks(self._path), "")
        self._database.lack = lack
        if lack:
            raise DatabaseDamaged(lack)

    def _lacks(self, path: Path) -> Iterator[str]:
        how = "restore the store from a backup, `smidgen coordinator verify` says what is wrong"
        try:
            found = path.stat()
            if self._handle is None:
                self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield f"the store's file {path.name} is gone; {how}"
            return
        magic = os.pread(self._handle, len(MAGIC), 0)
        log, wal = path.with_name(f"{path.name}-wal"), b""
        try:
            with log.open("rb") as file:
                wal, self._has_log = file.read(4), True
        except FileNotFoundError:
            if self._has_log:
                yield f"the store's file {log.name} is gone; {how}"
                return
        self._place = self._place or (found.st_dev, found.st_ino)
        if (found.st_dev, found.st_ino) != self._place:
            yield f"the store's file {path.name} was replaced by another; {how}"
        elif magic != MAGIC or (wal and wal not in WAL_MAGICS):
            yield f"the store's database is damaged: {path.name} was overwritten; {how}"
        elif found.st_size < self._size_bytes:
            yield f"the store's database is damaged: {path.name} was cut; {how}"
        else:
            self._size_bytes = found.st_size
