"""A device's own texts: `labelled.*`, `unlabelled.*`, `test.*` in one folder, read with care.

CSV, TSV and JSONL, gzipped or not (Parquet where pyarrow is installed). Columns: `text` (or
`text_a`, `text_b`), `label`, optional `language` and `id`; see `dialect` for others. Texts never
leave this process, and no message quotes one.

One bad line never stops a client: it is left out, and the log says where and why. A file that is
useless as a whole is an error; one without any row is as if it were not there.
"""

import csv
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.tables import plain
from edge_client.texts.dialect import PLAIN, Columns, Dialect, find
from edge_client.texts.lines import BOUNDS, LONGEST_LINE
from edge_client.texts.rows import FORMATS, LINES, DataError, Row, Rows, ending_of, rows_of

PARTS = ("labelled", "unlabelled", "test")
csv.field_size_limit(LONGEST_LINE)
TOLD = 3  # bad lines of a file that the log shows
NAMED = 12  # labels and columns that a message names
LONGEST_NAMED = 60  # characters of one of them
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """One text of the device.

    Attributes:
        text: The text, or the first of a pair.
        text_b: The second of a pair, or empty.
        label: Its label, or None where there is none.
        language: The language that the file names, or empty.
    """

    text: str
    text_b: str = ""
    label: str | None = None
    language: str = ""


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
    """

    line: int
    row: Row
    example: Example | None = None
    fault: str = ""
    id: str = ""


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


def read_folder(folder: Path, labels: Sequence[str], dialect: Dialect = PLAIN) -> ClientData:
    """Read a client data folder (or one labelled file in its place); an empty part is absent.

    Raises:
        DataError: Nothing there, a column is missing, or a file has rows and no text that can be
            used.
    """
    paths = files_of(folder)
    read = {
        part: tuple(_read_part(path, labels, part != "unlabelled", dialect))
        for part, path in paths.items()
    }
    if not any(read.values()):
        raise _empty(paths, dialect)
    return ClientData(*(read.get(part, ()) for part in PARTS))


def check_folder(folder: Path, dialect: Dialect = PLAIN) -> None:
    """Refuse a useless folder; only the first good lines of each file are read.

    Raises:
        DataError: See `read_folder`, whatever the labels are.
    """
    paths, good = files_of(folder), 0
    for part, path in paths.items():
        left_out = LeftOut()
        if next(read_texts(path, (), part != "unlabelled", left_out, dialect), None) is not None:
            good += 1
        elif left_out.is_any:
            raise _useless(path, left_out)
    if not good:
        raise _empty(paths, dialect)


def _empty(paths: Mapping[str, Path], dialect: Dialect) -> DataError:
    holds = " holds" if len(paths) == 1 else " hold"
    wanted = dialect.wanted(labelled=bool({"labelled", "test"} & paths.keys()))
    return DataError(f"{' and '.join(map(str, paths.values()))}{holds} no texts; {wanted}")


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a client data folder, by what they hold.

    Raises:
        DataError: There are none, or two of one kind.
    """
    if folder.is_file():
        return {"labelled": folder}
    if not folder.is_dir():
        raise DataError(f"no data at {folder}; a folder with labelled.csv (text,label) is expected")
    found = {part: path for part in PARTS if (path := find_part(folder, part))}
    if not found:
        raise DataError(
            f"{folder} holds no labelled.*, unlabelled.* or test.* (csv, tsv or jsonl, .gz or "
            "not); put a labelled.csv with columns text,label there"
        )
    return found


def find_part(folder: Path, part: str) -> Path | None:
    """The one file of a folder that is called so, `train` in any format; None if there is none.

    Raises:
        DataError: There are two.
    """
    names = [f"{part}{ending}{gz}" for ending in FORMATS for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} holds both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def read_file(
    path: Path, labels: Sequence[str], *, labelled: bool, dialect: Dialect = PLAIN
) -> list[Example]:
    """Read one file of texts; lines that cannot be used are left out and told in the log.

    Args:
        path: The file; its ending says the format.
        labels: Allowed labels; empty allows any.
        labelled: Whether a label column must be there.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, or no line can be used; names the file, and the first
            bad line.
    """
    examples = _read_part(path, labels, labelled, dialect)
    if not examples:
        wanted = f"; {dialect.wanted(labelled)}" if labelled else ""  # lines have no columns
        raise DataError(f"{path} holds no texts{wanted}")
    return examples


def _read_part(
    path: Path, labels: Sequence[str], labelled: bool, dialect: Dialect
) -> list[Example]:
    """As `read_file`, but a file without rows is one without texts."""
    left_out = LeftOut()
    found = read_texts(path, labels, labelled, left_out, dialect)
    examples = [example for _, example, _ in found]
    if not examples and left_out.is_any:
        raise _useless(path, left_out)
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


def _useless(path: Path, left_out: LeftOut) -> DataError:
    if left_out.faults:
        return DataError(f"{left_out.faults[0]}; no other line of the file can be used either")
    return DataError(f"{path} holds no texts: {left_out}")


def read_texts(
    path: Path,
    labels: Sequence[str],
    labelled: bool,
    left_out: LeftOut,
    dialect: Dialect = PLAIN,
) -> Iterator[tuple[int, Example, Row]]:
    """The texts of a file one by one, each with its line and all its columns; see `read_file`.

    Args:
        path: The file.
        labels: Allowed labels; empty allows any.
        labelled: Whether a label column must be there.
        left_out: Gets what is left out.
        dialect: How the file is written down.

    Raises:
        DataError: No such format or column, the file cannot be read at all, or it holds more than
            `lines.BOUNDS`.
    """
    rows = rows_of(path, dialect, labelled, left_out.notes, BOUNDS)
    table = _table(path)
    for found in found_in(rows, table, labels, labelled, left_out.notes, dialect):
        if found.example is not None:
            yield found.line, found.example, found.row
        elif found.fault:
            left_out.add(f"{path}, line {found.line}: {found.fault}")
        else:
            left_out.empty += 1


def every_row(
    path: Path, labels: Sequence[str], labelled: bool, notes: list[str], dialect: Dialect = PLAIN
) -> Iterator[Found]:
    """Every row of a file in its order, good or not, however many; see `read_texts`."""
    rows = rows_of(path, dialect, labelled, notes)
    return found_in(rows, _table(path), labels, labelled, notes, dialect)


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
) -> Iterator[Found]:
    """What rows hold.

    Args:
        rows: See `rows_of`.
        table: The file, if all its rows have the same columns; empty: each has its own.
        labels: Allowed labels; empty allows any.
        labelled: Whether a label column must be there.
        notes: Gets which columns go by other names.
        dialect: How the rows are written down.

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
        missing = "" if unreadable else _missing(names, columns, dialect, labelled, bool(table))
        if missing and table:
            raise DataError(f"{table}: {missing}")
        if fault := unreadable or missing or _fault(row, columns, labels, labelled):
            yield Found(line, row, fault=fault)
        else:
            yield Found(line, row, _example(row, columns, labelled), id=_value(row, columns.id))


def _example(row: Row, columns: Columns, labelled: bool) -> Example | None:
    """A row's text; None if it holds none."""
    text = _value(row, columns.text)
    if not text.strip():
        return None
    label = sys.intern(_value(row, columns.label)) if labelled else None  # held once, not per text
    language = sys.intern(_value(row, columns.language))
    return Example(text, _value(row, columns.text_b), label, language)


def _value(row: Row, column: str | None) -> str:
    return (row.get(column) if column is not None else "") or ""  # a short CSV row leaves None


def _missing(
    names: Sequence[str], columns: Columns, dialect: Dialect, labelled: bool, is_table: bool
) -> str:
    """Which column is not there; names that may be a text are counted, never quoted."""
    if not columns.is_any:
        return dialect.no_header(len(names), labelled, is_table)
    column, wanted = "", dialect.text_column or "text"
    if columns.text is None:
        column = f"`{wanted}`" if dialect.text_column else "`text` (or `text_a`)"
    elif labelled and columns.label is None:
        column = f"`{dialect.label_column or 'label'}`"
    return f"no column {column}; found {_named(names)}" if column else ""


def _named(names: Sequence[str]) -> str:
    """Labels or columns in a message: printable, and not too many."""
    more = f" ... ({len(names)})" if len(names) > NAMED else ""
    return ", ".join(plain(name)[:LONGEST_NAMED] for name in names[:NAMED]) + more


def _fault(row: Row, columns: Columns, labels: Sequence[str], labelled: bool) -> str:
    """Why a row cannot be used; empty if it can, or if it holds no text."""
    if any("\0" in value for value in row.values() if value):
        return "a NUL byte; text is expected"
    text, label = _value(row, columns.text), _value(row, columns.label)
    if not labelled or not text.strip() or (label in labels if labels else label):
        return ""
    known = _named(labels)
    if not label:
        return f"no label; {f'one of {known}' if labels else 'a label'} is expected"
    if text in labels:
        return f"label is not one of {known}, but the text is; are the columns swapped?"
    if alike := find(labels, label):
        return f"label is not one of {known}; it differs from {_named([alike])} in case or spaces"
    return f"label is not one of {known}"


def write_csv(path: Path, examples: Sequence[Example]) -> None:
    """Write texts as CSV, without a label column where no text has a label.

    Where all texts have a label, or none has, `read_file` gives equal examples back, but for texts
    of spaces alone or with NUL, which it leaves out. Equal examples write equal bytes.

    Raises:
        DataError: A text is not Unicode; half a surrogate pair, say.
        OSError: The file cannot be written.
    """
    columns = ["text", "text_b", "label", "language"]
    if all(example.label is None for example in examples):
        columns.remove("label")
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)  # its "\r\n" makes every version quote both characters
            writer.writerow(columns)
            writer.writerows([getattr(e, column) for column in columns] for e in examples)
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: a text cannot be written as UTF-8: {error.reason}") from error
