"""A client data folder that goes on being filled: read again once its files have changed.

    texts = DataFolder(Path("mine"), task.labels)
    data = texts.read()  # at the beginning of each piece of work, and never in the middle of one

Nothing that was read once is lost because a file is being written, is gone with its disk or is
damaged: the texts read last stay until all files can be read again.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_client.texts.dialect import PLAIN, Dialect
from edge_client.texts.examples import ClientData, files_of, read_folder
from edge_client.texts.rows import DataError, ending_of

log = logging.getLogger(__name__)

SETTLED_S = 2.0  # after its last change a file that looks unfinished is taken as it is
LINES = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True)
class FileMark:
    """What tells that a file has changed."""

    path: Path
    inode: int
    size_bytes: int
    modified_ns: int


Marks = Mapping[str, FileMark]


class DataFolder:
    """The texts of a client data folder (or of one labelled file in its place).

    Args:
        path: The folder.
        labels: Allowed labels.
        dialect: How its files are written down.
    """

    def __init__(self, path: Path, labels: Sequence[str], dialect: Dialect = PLAIN) -> None:
        self._path, self.labels, self._dialect = path, labels, dialect
        self._data: ClientData | None = None
        self._marks: Marks = {}
        self._told = ""

    def read(self) -> ClientData:
        """The texts as they are now, or as they were read last if they cannot be read now.

        While nothing has changed the very same object is given. Why changed texts are not taken is
        told once in the log; the next call tries again.

        Raises:
            DataError: They cannot be read, and never were.
        """
        try:
            marks = marks_of(self._path)
            if self._data is None:
                self._data, self._marks = read_folder(self._path, self.labels, self._dialect), marks
            elif marks != self._marks and self._is_ready(marks):
                self._take(marks)
        except (DataError, OSError) as error:
            if self._data is None and isinstance(error, OSError):
                path = error.filename or self._path
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
            if self._data is None:
                raise
            self._tell(f"cannot be read now: {error}")
        return self._data

    def _take(self, marks: Marks) -> None:
        data = read_folder(self._path, self.labels, self._dialect)
        for part, mark in marks.items():
            if self._data and getattr(self._data, part) and not getattr(data, part):
                self._tell(f"holds {mark.path.name}, which has no texts any more; delete it if so")
                return
        if marks_of(self._path) != marks:
            self._tell("was written while it was read")
            return
        self._data, self._marks, self._told = data, marks, ""
        log.info(
            "%s has changed and was read again: %d labelled texts, %d unlabelled, %d to test on",
            self._path,
            len(data.labelled),
            len(data.unlabelled),
            len(data.test),
        )

    def _is_ready(self, marks: Marks) -> bool:
        """Whether no file is out of reach, or looks as if it were being written."""
        for known in self._marks.values():
            if os.path.lexists(known.path) and not known.path.is_file():
                self._tell(f"no longer reaches what {known.path.name} leads to")
                return False
        for part in self._marks.keys() - marks.keys():
            if _is_recent(self._path.stat().st_mtime_ns):
                self._tell(f"no longer holds {self._marks[part].path.name}, which may come back")
                return False
        for part, mark in marks.items():
            before = self._marks.get(part)
            is_smaller = before is not None and mark.size_bytes < before.size_bytes
            if _is_recent(mark.modified_ns) and (is_smaller or _is_cut(mark.path)):
                self._tell(f"holds {mark.path.name}, which is being written")
                return False
        return True

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            log.warning("%s %s; the texts read last stay in use", self._path, reason)
        self._told = reason


def marks_of(folder: Path) -> dict[str, FileMark]:
    """Marks of the files of a client data folder, by what they hold.

    Raises:
        DataError: There is no data.
        OSError: A file is gone.
    """
    marks = {}
    for part, path in files_of(folder).items():
        told = path.stat()
        marks[part] = FileMark(path, told.st_ino, told.st_size, told.st_mtime_ns)
    return marks


def _is_recent(modified_ns: int) -> bool:
    """Whether it was moments ago; a time to come is a wrong clock's, and says nothing."""
    return 0 <= time.time_ns() - modified_ns < SETTLED_S * 1e9


def _is_cut(path: Path) -> bool:
    """Whether the last line of a text file has no end yet."""
    if path.suffix == ".gz" or ending_of(path) not in LINES:
        return False  # a part of these cannot be read at all
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 2))  # of UTF-16 a line's end has two bytes, one of them NUL
        return file.read(2).strip(b"\0")[-1:] not in (b"\n", b"\r")
