"""A device's own texts: `labelled.*`, `unlabelled.*`, `test.*` in one folder, read with care.

CSV, TSV and JSONL, gzipped or not (Parquet where pyarrow is installed). Columns: `text` (or
`text_a`, `text_b`), `label`, optional `language` and `id`. Texts never leave this process.

One bad line never stops a client: it is left out, and the log says where and why. A file that is
useless as a whole is an error.
"""

import csv
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_client.texts.rows import FORMATS, DataError, Row, ending_of, rows_of

PARTS = ("labelled", "unlabelled", "test")
csv.field_size_limit(16 * 1024 * 1024)
TOLD = 3  # bad lines of a file that the log shows
log = logging.getLogger(__name__)


@dataclass(frozen=True)
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
    """Rows of a file that gave no text.

    Attributes:
        faults: A line for each bad one: file, line, reason.
        empty: How many have no text, which does not count as a fault.
    """

    faults: list[str] = field(default_factory=list)
    empty: int = 0

    def __str__(self) -> str:
        """How many of what, and the first bad ones."""
        more = "; ..." if len(self.faults) > TOLD else ""
        bad = f"{len(self.faults)} bad ({'; '.join(self.faults[:TOLD])}{more})"
        parts = [bad] if self.faults else []
        return ", ".join([*parts, f"{self.empty} without a text"] if self.empty else parts)


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


def read_folder(folder: Path, labels: Sequence[str]) -> ClientData:
    """Read a client data folder (or one labelled file in its place).

    Raises:
        DataError: Nothing there, a column is missing, or a file has no text that can be used.
    """
    read = {
        part: tuple(read_file(path, labels, labelled=part != "unlabelled"))
        for part, path in files_of(folder).items()
    }
    return ClientData(*(read.get(part, ()) for part in PARTS))


def check_folder(folder: Path) -> None:
    """Refuse a useless folder; only the first good lines of each file are read.

    Raises:
        DataError: See `read_folder`, whatever the labels are.
    """
    for part, path in files_of(folder).items():
        left_out = LeftOut()
        if next(read_texts(path, (), part != "unlabelled", left_out), None) is None:
            raise _useless(path, left_out)


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


def read_file(path: Path, labels: Sequence[str], *, labelled: bool) -> list[Example]:
    """Read one file of texts; lines that cannot be used are left out and told in the log.

    Args:
        path: The file; its ending says the format.
        labels: Allowed labels; empty allows any.
        labelled: Whether a `label` column must be there.

    Raises:
        DataError: No such format or column, or no line can be used; names the file, and the first
            bad line.
    """
    left_out = LeftOut()
    examples = [example for _, example, _ in read_texts(path, labels, labelled, left_out)]
    if not examples:
        raise _useless(path, left_out)
    if left_out.faults:
        log.warning("lines left out: %s", left_out)
    elif left_out.empty:
        log.info("%s: lines left out: %s", path, left_out)
    return examples


def _useless(path: Path, left_out: LeftOut) -> DataError:
    if left_out.faults:
        return DataError(f"{left_out.faults[0]}; no other line of the file can be used either")
    return DataError(f"{path} holds no texts")


def read_texts(
    path: Path, labels: Sequence[str], labelled: bool, left_out: LeftOut
) -> Iterator[tuple[int, Example, Row]]:
    """The texts of a file one by one, each with its line and all its columns; see `read_file`.

    Args:
        path: The file.
        labels: Allowed labels; empty allows any.
        labelled: Whether a `label` column must be there.
        left_out: Gets what is left out.

    Raises:
        DataError: No such format or column, or the file cannot be read at all.
    """
    for line, row, unreadable in rows_of(path):
        missing = "" if unreadable else _missing(row, labelled)
        if missing and ending_of(path) != ".jsonl":  # the rows of a table have the same columns
            raise DataError(f"{path}: {missing}")
        if fault := unreadable or missing or _fault(row, labels, labelled):
            left_out.faults.append(f"{path}, line {line}: {fault}")
        elif not _text(row).strip():
            left_out.empty += 1
        else:
            label = row["label"] if labelled else None
            language = row.get("language") or ""
            yield line, Example(_text(row), row.get("text_b") or "", label, language), row


def _text(row: Row) -> str:
    return row.get("text", row.get("text_a")) or ""  # a short CSV row leaves None


def _missing(row: Row, labelled: bool) -> str:
    if "text" not in row and "text_a" not in row:
        return f"no column `text` (or `text_a`); found {', '.join(row)}"
    if labelled and "label" not in row:
        return f"no column `label`; found {', '.join(row)}"
    return ""


def _fault(row: Row, labels: Sequence[str], labelled: bool) -> str:
    """Why a row cannot be used; empty if it can, or if it holds no text."""
    if any("\0" in value for value in row.values() if value):
        return "a NUL byte; text is expected"
    label = (row["label"] or "") if labelled else None
    if label is None or not _text(row).strip() or (label in labels if labels else label):
        return ""
    return f"label {label[:60]!r} is not one of {', '.join(labels) or 'any'}"


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
