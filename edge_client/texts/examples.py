"""A device's own texts: `labelled.*`, `unlabelled.*`, `test.*` in one folder, read with care.

CSV, TSV and JSONL, gzipped or not (Parquet where pyarrow is installed). Columns: `text` (or
`text_a`, `text_b`), `label`, optional `language` and `id`; see `dialect` for others. Tasks that tag
words read `formats.tagged` instead, those that mask words lines and `formats.paragraphs` as well.
Texts never leave this process, and no message quotes one.

One bad line never stops a client: it is left out, and the log says where and why. A file that is
useless as a whole is an error; one without any row is as if it were not there.
"""

import csv
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.formats.dialect import PLAIN, Columns, Dialect, find
from edge_client.texts.faults import fault_of, missing_column, value_of
from edge_client.formats.paragraphs import paragraphs_in
from edge_client.formats.conll import tagged_texts
from edge_client.formats.lines import BOUNDS, LONGEST_LINE, Bounds
from edge_client.texts.parts import PARTS, files_of
from edge_client.formats.opened import LINES, DataError, Row, Rows, ending_of, rows_of
from edge_client.texts.tasks import Kind, Wanted

csv.field_size_limit(LONGEST_LINE)
TOLD = 3  # bad lines of a file that the log shows
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One text of the device.

    Attributes:
        text: The text, or the first of a pair.
        text_b: The second of a pair, or empty.
        label: Its label, or None where there is none.
        language: The language that the file names, or empty.
        words: Its words, where the file tells them apart, as for tagging; the text is these with
            spaces between them. Empty: they are found in the text.
        tags: A tag of each word; empty where there are none.
        line: Where in its file it ends, from 1; 0 where nobody said. Two texts that differ in it
            alone are equal.
        file: The name of its file, for messages on this device; not compared either.
    """

    text: str
    text_b: str = ""
    label: str | None = None
    language: str = ""
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    file: str = field(default="", compare=False)


@dataclass
class LeftOut:
    """Rows of a file that gave no text, and what was found out about the file.

    Attributes:
        faults: A line for each of the first bad ones: file, line, reason.
        bad: How many are bad.
        empty: How many have no text, which does not count as a fault.
        notes: What of the file was found out without being told, see `dialect`.
    """

    faults: list[str] = field(default_factory=list)
    bad: int = 0
    empty: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_any(self) -> bool:
        """Whether a row was left out."""
        return bool(self.bad or self.empty)

    def add(self, fault: str) -> None:
        """Leave a bad row out; of millions only the first are kept."""
        self.bad += 1
        if self.bad <= TOLD:
            self.faults.append(fault)

    def __str__(self) -> str:
        """How many of what, and the first bad ones."""
        more = "; ..." if self.bad > TOLD else ""
        bad = f"{self.bad} bad ({'; '.join(self.faults)}{more})"
        parts = [bad] if self.faults else []
        return ", ".join([*parts, f"{self.empty} without a text"] if self.empty else parts)


@dataclass(frozen=True)
class Found:
    """One row of a file.

    Attributes:
        line: Where it ends, from 1.
        row: All its columns.
        example: Its text; None without one.
        fault: Why it cannot be used; empty if it can, or holds no text.
        id: What its `id` column says, or empty.
        file: The file that it is in, where several are read as one; else empty.
    """

    line: int
    row: Row
    example: Example | None = None
    fault: str = ""
    id: str = ""
    file: str = ""


@dataclass(frozen=True)
class ClientData:
    """What a device holds.

    Attributes:
        labelled: Texts to train on.
        unlabelled: Texts without label.
        test: Texts kept for evaluation, labelled.
    """

    labelled: tuple[Example, ...]
    unlabelled: tuple[Example, ...]
    test: tuple[Example, ...]


def read_folder(folder: Path, wanted: Wanted, dialect: Dialect = PLAIN) -> ClientData:
    """Read a client data folder (or one labelled file in its place); an empty part is absent.

    Args:
        folder: The folder.
        wanted: The task, or what of it says how its texts are read.
        dialect: How the files are written down.

    Raises:
        DataError: Nothing there, a column is missing, or a file has rows and no text that can be
            used.
    """
    return client_data(read_parts(folder, wanted, dialect), wanted.kind)


def read_parts(
    folder: Path, wanted: Wanted, dialect: Dialect = PLAIN
) -> dict[str, tuple[Example, ...]]:
    """The texts of a folder by the file that they are in; see `read_folder`."""
    paths = files_of(folder, wanted.kind)
    read = {
        part: tuple(_read_part(path, wanted, part != "unlabelled", dialect))
        for part, path in paths.items()
    }
    if not any(read.values()):
        raise without_texts(paths, wanted.kind, dialect)
    return read


def client_data(parts: Mapping[str, tuple[Example, ...]], kind: Kind) -> ClientData:
    """Texts by what they are for; masked words are asked for in texts with labels or without."""
    labelled, unlabelled, test = (parts.get(part, ()) for part in PARTS)
    if kind == "mlm":
        return ClientData(labelled + unlabelled, (), test)
    return ClientData(labelled, unlabelled, test)


def without_texts(paths: Mapping[str, Path], kind: Kind, dialect: Dialect) -> DataError:
    """The error of files that hold nothing."""
    holds = " holds" if len(paths) == 1 else " hold"
    wanted = _expected(kind, bool({"labelled", "test"} & paths.keys()), dialect)
    return DataError(f"{' and '.join(map(str, paths.values()))}{holds} no texts; {wanted}")


def _expected(kind: Kind, labelled: bool, dialect: Dialect) -> str:
    """What a file holds, in words."""
    if kind == "mlm":
        return (
            "a text on each line, a column `text`, or paragraphs in a folder's files are expected"
        )
    if kind == "tagging" and labelled:
        return "a word and its tag on each line are expected, and blank lines between texts"
    return dialect.wanted(labelled)


def read_file(
    path: Path, wanted: Wanted, *, labelled: bool, dialect: Dialect = PLAIN
) -> list[Example]:
    """Read one file of texts; lines that cannot be used are left out and told in the log.

    Args:
        path: The file; its ending says the format.
        wanted: The task, or what of it says how its texts are read; `ANY` allows any label.
        labelled: Whether labels, or tags, must be there; of `mlm` they are not read.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, or no line can be used; names the file, and the first
            bad line.
    """
    examples = _read_part(path, wanted, labelled, dialect)
    if not examples:
        is_told = labelled or wanted.kind != "labels"  # lines have no columns
        expected = f"; {_expected(wanted.kind, labelled, dialect)}" if is_told else ""
        raise DataError(f"{path} holds no texts{expected}")
    return examples


def _read_part(path: Path, wanted: Wanted, labelled: bool, dialect: Dialect) -> list[Example]:
    """As `read_file`, but a file without rows is one without texts."""
    left_out = LeftOut()
    found = read_texts(path, wanted, labelled, left_out, dialect)
    examples = [example for _, example, _ in found]
    if not examples and left_out.is_any:
        raise useless(path, left_out)
    tell(path, left_out)
    return examples


def tell(path: Path | str, left_out: LeftOut) -> None:
    """Say in the log what was found out about a file, and which lines are left out."""
    if left_out.notes:
        log.warning("%s is read with %s", path, ", ".join(left_out.notes))
    if left_out.faults:
        log.warning("lines left out: %s", left_out)
    elif left_out.empty:
        log.info("%s: lines left out: %s", path, left_out)


def useless(path: Path, left_out: LeftOut) -> DataError:
    """The error of a file with rows none of which can be used."""
    if left_out.faults:
        what = "folder" if path.is_dir() else "file"
        return DataError(f"{left_out.faults[0]}; no other line of the {what} can be used either")
    return DataError(f"{path} holds no texts: {left_out}")


def read_texts(
    path: Path,
    wanted: Wanted,
    labelled: bool,
    left_out: LeftOut,
    dialect: Dialect = PLAIN,
) -> Iterator[tuple[int, Example, Row]]:
    """The texts of a file one by one, each with its line and all its columns; see `read_file`.

    Args:
        path: The file, or of `mlm` a folder of files.
        wanted: The task, or what of it says how its texts are read; `ANY` allows any label.
        labelled: Whether labels, or tags, must be there.
        left_out: Gets what is left out.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, the file cannot be read at all, or it holds more than
            `lines.BOUNDS`.
    """
    for found in every_row(path, wanted, labelled, left_out.notes, dialect, BOUNDS):
        if found.example is not None:
            yield found.line, found.example, found.row
        elif found.fault:
            left_out.add(f"{found.file or path}, line {found.line}: {found.fault}")
        else:
            left_out.empty += 1


def every_row(
    path: Path,
    wanted: Wanted,
    labelled: bool,
    notes: list[str],
    dialect: Dialect = PLAIN,
    bounds: Bounds | None = None,
) -> Iterator[Found]:
    """Every row of a file in its order, good or not; see `read_texts`.

    Args:
        path: The file.
        wanted: See `read_texts`.
        labelled: Likewise.
        notes: Gets what was found out without being told.
        dialect: How the file is written down.
        bounds: What is read at most; None: however much there is.
    """
    if wanted.kind == "tagging" and labelled:
        return _tagged(path, wanted.labels, notes, dialect, bounds)
    if path.is_dir():
        return _paragraphs(path, notes, dialect, bounds)
    is_labelled = labelled and wanted.kind == "labels"
    rows = rows_of(path, dialect, is_labelled, notes, bounds)
    return found_in(rows, _table(path), wanted.labels, is_labelled, notes, dialect, path.name)


def every_word(path: Path, notes: list[str], dialect: Dialect) -> Iterator[Found]:
    """Every text of a file that tells words apart, as `every_row`; its tags are not looked at."""
    return _tagged(path, None, notes, dialect, None)


def _tagged(
    path: Path,
    labels: tuple[str, ...] | None,
    notes: list[str],
    dialect: Dialect,
    bounds: Bounds | None,
) -> Iterator[Found]:
    for one in tagged_texts(path, labels, dialect, notes, bounds):
        example = Example(
            " ".join(one.words),
            language=one.language,
            words=one.words,
            tags=one.tags,
            line=one.line,
            file=path.name,
        )
        id_ = value_of(one.row, find(list(one.row), "id"))
        yield Found(one.line, one.row, example if one.words else None, one.fault, id_)


def _paragraphs(
    folder: Path, notes: list[str], dialect: Dialect, bounds: Bounds | None
) -> Iterator[Found]:
    for one in paragraphs_in(folder, dialect, notes, bounds):
        file = f"{folder.name}/{one.file.name}"
        example = Example(one.text, line=one.line, file=file) if one.text else None
        yield Found(one.line, {}, example, one.fault, file=str(one.file))


def _table(path: Path) -> str:
    """The file, if all its rows have the same columns; else empty."""
    return str(path) if ending_of(path) not in (".jsonl", LINES) else ""


def found_in(
    rows: Rows,
    table: str,
    labels: Sequence[str],
    labelled: bool,
    notes: list[str],
    dialect: Dialect = PLAIN,
    file: str = "",
) -> Iterator[Found]:
    """What rows hold.

    Args:
        rows: See `rows_of`.
        table: The file, if all its rows have the same columns; empty: each has its own.
        labels: Allowed labels; empty allows any.
        labelled: Whether a label column must be there.
        notes: Gets which columns go by other names.
        dialect: How the rows are written down.
        file: What messages on a text call the file.

    Raises:
        DataError: A table lacks a column.
    """
    names: tuple[str, ...] = ()
    columns = dialect.columns(names)
    for line, row, unreadable in rows:
        if not unreadable and tuple(row) != names:
            names = tuple(row)
            columns = dialect.columns(names)
            notes += [note for note in columns.renamed(dialect, labelled) if note not in notes]
        missing = (
            "" if unreadable else missing_column(names, columns, dialect, labelled, bool(table))
        )
        if missing and table:
            raise DataError(f"{table}: {missing}")
        if fault := unreadable or missing or fault_of(row, columns, labels, labelled):
            yield Found(line, row, fault=fault)
        else:
            example = _example(row, columns, labelled, line, file)
            yield Found(line, row, example, id=value_of(row, columns.id))


def _example(row: Row, columns: Columns, labelled: bool, line: int, file: str) -> Example | None:
    """A row's text; None if it holds none."""
    text = value_of(row, columns.text)
    if not text.strip():
        return None
    label = (
        sys.intern(value_of(row, columns.label)) if labelled else None
    )  # held once, not per text
    language = sys.intern(value_of(row, columns.language))
    second = value_of(row, columns.text_b)
    return Example(text, second, label, language, line=line, file=file)
