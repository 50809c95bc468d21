"""A client's data folder: checked before a run, and read again when its files have changed.

    texts = DataFolder(Path("mine"), task)
    data = texts.read()  # at the beginning of each piece of work, never in the middle of one

While a file is being written, is missing with its disk or is damaged, the texts read last stay in
use, until all files can be read again.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from smidgen.edge_client.formats.paragraphs import LINES, files_in
from smidgen.edge_client.formats.source import PLAIN, DataError, Dialect, Reason, ending_of
from smidgen.edge_client.texts.accounting import Accounting, useless
from smidgen.edge_client.texts.examples import ClientData, client_data, read_parts, read_texts
from smidgen.edge_client.texts.parts import (
    ANY,
    Files,
    Labels,
    Wanted,
    endings_of,
    expected,
    files_of,
    without_texts,
)

log = logging.getLogger(__name__)

SETTLED_S = 2.0  # after its last change a file that looks unfinished is taken as it is
WHOLE = (".json", ".parquet", ".arrow", ".feather")  # a part of these cannot be read at all


Marks = Mapping[Path, tuple[int, int, int]]  # inode, bytes and time of change of each file


def check_folder(folder: Path, kinds: Iterable[Files], dialect: Dialect = PLAIN) -> None:
    """Refuse a folder that is useless for tasks of every kind; only its first good lines are read.

    A table called `labelled` must have labels; a text without one belongs into `unlabelled`.

    Raises:
        DataError: See `read_folder`, whatever the labels are.
    """
    absent, faults, others = list[DataError](), list[DataError](), list[DataError]()
    said = ""
    for files in _fitting(folder, list(kinds)):
        try:
            paths = files_of(folder, files)
        except DataError as error:
            absent.append(error)
            continue
        if files.wants == "tags" and not {"labelled", "test"} & paths.keys():
            continue  # with nothing tagged there is nothing to do
        reasons = Counter[Reason]()
        try:
            _check_parts(paths, Labels(files=files), dialect, reasons)
        except DataError as error:
            # Where columns alone are missing, the rows are for tasks of another kind.
            (faults if reasons.keys() - {"columns"} else others).append(error)
            if files.turns is not None:
                said = f"; for a task of kind {files.kind}, {expected(files, True, dialect)}"
        else:
            return
    if not faults and len(others) > 1:
        raise DataError(f"{others[0]}{said}")
    raise [*faults, *others, *absent][0]


def _fitting(folder: Path, kinds: list[Files]) -> list[Files]:
    """The kinds of task that a folder, or one file in its place, may be for."""
    if not folder.is_file():
        return kinds
    return [files for files in kinds if ending_of(folder) in endings_of("labelled", files)] or kinds


def _check_parts(
    paths: Mapping[str, Path], wanted: Labels, dialect: Dialect, reasons: Counter[Reason]
) -> None:
    """As `check_folder`, for one kind.

    Args:
        paths, wanted, dialect: As `read_texts` takes them.
        reasons: Gets why rows of a file that is useless were left out.
    """
    good = 0
    for part, path in paths.items():
        accounting, asked = Accounting(), wanted
        if (
            part == "labelled"
            and wanted.files.is_plain
            and ending_of(path) != LINES
            and path.is_file()
        ):
            asked = ANY
        if (
            next(read_texts(path, asked, part != "unlabelled", accounting, dialect), None)
            is not None
        ):
            good += 1
        elif accounting.left_out:
            reasons += accounting.reasons
            raise useless(path, accounting)
    if not good:
        raise without_texts(paths, wanted.files, dialect)


class DataFolder:
    """The texts of a client data folder (or of one labelled file in its place).

    Args:
        path: The folder.
        wanted: The task, or what of it says how its texts are read.
        dialect: How its files are written down.
    """

    def __init__(self, path: Path, wanted: Wanted, dialect: Dialect = PLAIN) -> None:
        self._path, self.wanted, self._dialect = path, wanted, dialect
        self._data: ClientData | None = None
        self._parts: frozenset[str] = frozenset()  # that had texts when they were read last
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
            marks = marks_of(self._path, self.wanted.files)
            if self._data is None:
                self._data, self._parts = self._read()
                self._marks = marks
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

    def _read(self) -> tuple[ClientData, frozenset[str]]:
        parts = read_parts(self._path, self.wanted, self._dialect)
        full = frozenset(part for part, texts in parts.items() if texts)
        return client_data(parts, self.wanted.files), full

    def _take(self, marks: Marks) -> None:
        data, parts = self._read()
        for part, path in files_of(self._path, self.wanted.files).items():
            if part in self._parts - parts:
                self._tell(f"holds {path.name}, which has no texts any more; delete it if so")
                return
        if marks_of(self._path, self.wanted.files) != marks:
            self._tell("was written while it was read")
            return
        self._data, self._parts, self._marks, self._told = data, parts, marks, ""
        log.info(
            "%s has changed and was read again: %d %s, %d unlabelled, %d to test on",
            self._path,
            len(data.labelled),
            self.wanted.files.nouns,
            len(data.unlabelled),
            len(data.test),
        )

    def _is_ready(self, marks: Marks) -> bool:
        """Whether no file is out of reach, or looks as if it were being written."""
        for known in self._marks:
            there = os.path.lexists(known) and not known.is_file()
            if there or (os.path.lexists(known.parent) and not known.parent.is_dir()):
                self._tell(f"no longer reaches what {known.name} leads to")
                return False
        for gone in self._marks.keys() - marks.keys():
            folder = gone.parent if gone.parent.is_dir() else self._path
            if _is_recent(folder.stat().st_mtime_ns):
                self._tell(f"no longer holds {gone.name}, which may come back")
                return False
        for path, (_, size_bytes, modified_ns) in marks.items():
            is_smaller = path in self._marks and size_bytes < self._marks[path][1]
            if _is_recent(modified_ns) and (is_smaller or _is_cut(path)):
                self._tell(f"holds {path.name}, which is being written")
                return False
        return True

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            log.warning("%s %s; the texts read last stay in use", self._path, reason)
        self._told = reason


def marks_of(folder: Path, files: Files = ANY.files) -> Marks:
    """Marks of the files of a client data folder, those in the folders of it included.

    Raises:
        DataError: There is no data.
        OSError: A file is gone.
    """
    marks = {}
    for path in files_of(folder, files).values():
        for file in _files(path):
            told = file.stat()
            marks[file] = told.st_ino, told.st_size, told.st_mtime_ns
    return marks


def _files(path: Path) -> Sequence[Path]:
    """The files of a part: itself, or those of its folder."""
    if not path.is_dir():
        return (path,)
    if texts := files_in(path):
        return [*texts, *sorted(path.glob("*.ann"))]
    return sorted(one for one in path.iterdir() if one.is_file())


def _is_recent(modified_ns: int) -> bool:
    """Whether it was moments ago; a time to come is a wrong clock's, and says nothing."""
    return 0 <= time.time_ns() - modified_ns < SETTLED_S * 1e9


def _is_cut(path: Path) -> bool:
    """Whether the last line of a text file has no end yet."""
    if path.suffix == ".gz" or ending_of(path) in WHOLE:
        return False
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 2))  # of UTF-16 a line's end has two bytes, one of them NUL
        return file.read(2).strip(b"\0")[-1:] not in (b"\n", b"\r")
