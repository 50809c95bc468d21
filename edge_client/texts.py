"""A device's own texts: `labelled.*`, `unlabelled.*`, `test.*` in one folder, read with care.

CSV, TSV and JSONL, gzipped or not (Parquet where pyarrow is installed). Columns: `text` (or
`text_a`, `text_b`), `label`, optional `language` and `id`. Texts never leave this process.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
csv.field_size_limit(16 * 1024 * 1024)


class DataError(ValueError):
    """A data folder or file that cannot be used; names file and line."""


@dataclass(frozen=True)
class Example:
    """One text of the device.

    Attributes:
        text: The text, or the first of a pair.
        text_b: The second of a pair, or empty.
        label: Its label, or None where there is none.
        language: As the file says, or empty.
    """

    text: str
    text_b: str = ""
    label: str | None = None
    language: str = ""


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
        DataError: Nothing there, a column is missing, or a label is not one of `labels`.
    """
    if folder.is_file():
        return ClientData(tuple(read_file(folder, labels, labelled=True)), (), ())
    if not folder.is_dir():
        raise DataError(f"no data at {folder}; a folder with labelled.csv (text,label) is expected")
    parts = {part: find_part(folder, part) for part in ("labelled", "unlabelled", "test")}
    if not parts["labelled"] and not parts["test"]:
        raise DataError(
            f"{folder} holds no labelled.* or test.* (csv, tsv or jsonl, .gz or not); "
            "put a labelled.csv with columns text,label there"
        )
    read = {
        part: tuple(read_file(path, labels, labelled=part != "unlabelled")) if path else ()
        for part, path in parts.items()
    }
    return ClientData(read["labelled"], read["unlabelled"], read["test"])


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
    """Read one file of texts.

    Args:
        path: The file; its ending says the format.
        labels: Allowed labels; empty allows any.
        labelled: Whether a `label` column must be there.

    Raises:
        DataError: Names the file, and the line where it can.
    """
    examples = []
    for line, row in read_rows(path):
        if "text" not in row and "text_a" not in row:
            raise DataError(f"{path}: no column `text` (or `text_a`); found {', '.join(row)}")
        if labelled and "label" not in row:
            raise DataError(f"{path}: no column `label`; found {', '.join(row)}")
        text = row.get("text", row.get("text_a")) or ""  # a short CSV row leaves None
        label = (row["label"] or "") if labelled else None
        if label is not None and (label not in labels if labels else not label):
            raise DataError(
                f"{path}, line {line}: label {label!r} is not one of {', '.join(labels) or 'any'}"
            )
        if text.strip():
            examples.append(
                Example(text, row.get("text_b") or "", label, row.get("language") or "")
            )
    if not examples:
        raise DataError(f"{path} holds no texts")
    return examples


def write_csv(path: Path, examples: Sequence[Example]) -> None:
    """Write texts as CSV, without a label column where no text has a label.

    Where all texts have a label, or none has, `read_file` gives equal examples back, but for texts
    of spaces alone, which it leaves out. Equal examples write equal bytes.

    Raises:
        DataError: A text is no Unicode; half a surrogate pair, say.
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


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and columns of each row of a file, whatever its columns are called.

    Raises:
        DataError: No such format, or the file cannot be read as it.
    """
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending == ".parquet":
        yield from _parquet_rows(path)
        return
    if ending not in FORMATS:
        raise DataError(f"{path}: {', '.join(FORMATS)} (.gz or not) expected")
    try:
        with _open_text(path) as file:
            yield from _jsonl_rows(path, file) if ending == ".jsonl" else _csv_rows(file, ending)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as UTF-8 {ending[1:]}: {error}") from error


def _open_text(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.GzipFile(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv_rows(file: TextIO, ending: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(file, delimiter="\t" if ending == ".tsv" else ",")
    for row in reader:
        yield reader.line_num, {key: value for key, value in row.items() if isinstance(key, str)}


def _jsonl_rows(path: Path, file: TextIO) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: an object with `text` expected")
        yield number, {str(key): str(value) for key, value in row.items() if value is not None}


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path}: pip install pyarrow to read Parquet, or save it as CSV"
        ) from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield number, {str(key): str(value) for key, value in row.items() if value is not None}
