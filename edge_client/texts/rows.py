"""Rows of files: CSV, TSV, JSONL and lines, gzipped or not, and Parquet where pyarrow is there."""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TextIO

from edge_client.errors import WrongInput
from edge_client.texts.dialect import DELIMITERS, PLAIN, Dialect, names_of

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
LINES = ".txt"  # one text per line: to be labelled, not to train on
NUL = "\udc00"  # in place of NUL bytes, which Python 3.10's csv does not read
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}

# What is left of bytes that are not UTF-8, halves of surrogate pairs in JSON, and our NUL.
NO_TEXT = re.compile("[\ud800-\udfff]")
Row = Mapping[str, str]
Rows = Iterator[tuple[int, dict[str, str], str]]  # line, columns, what makes them unreadable


class DataError(WrongInput):
    """A data folder or file that cannot be used; names file and line."""


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and columns of each row of a file, whatever its columns are called.

    Raises:
        DataError: No such format, or the file or one of its rows cannot be read as it.
    """
    for line, row, fault in rows_of(path):
        if fault:
            raise DataError(f"{path}, line {line}: {fault}")
        yield line, row


def ending_of(path: Path) -> str:
    """A file's format, such as `.csv`, whether it is gzipped or not."""
    return Path(path.name.removesuffix(".gz")).suffix


def rows_of(
    path: Path,
    dialect: Dialect = PLAIN,
    labelled: bool | None = None,
    notes: list[str] | None = None,
) -> Rows:
    """Line number, columns and what makes them unreadable, which is mostly nothing.

    Args:
        path: The file; its ending says the format.
        dialect: How it is written down.
        labelled: Whether a label column is wanted beside a text; None: whatever columns there are.
        notes: Gets what was found out without being told.

    Raises:
        DataError: No such format, or the file cannot be read at all.
    """
    ending, found = ending_of(path), notes if notes is not None else []
    if ending == ".parquet":
        yield from _parquet_rows(path)
        return
    if ending not in (*FORMATS, LINES):
        raise DataError(f"{path}: {', '.join(FORMATS)} (.gz or not) expected")
    encoding = dialect.encoding or "UTF-8"
    try:
        with gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb") as binary:
            encoding = encoding_of(binary, dialect, found)
            with _as_text(binary, encoding) as file:
                if ending in (".csv", ".tsv"):
                    rows = _csv_rows(file, ending, dialect, labelled, found)
                else:
                    rows = _jsonl_rows(file) if ending == ".jsonl" else _line_rows(file)
                yield from _checked(rows, encoding)
    except UnicodeDecodeError as error:
        raise _not_in(str(path), encoding, error) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as {encoding} {ending[1:]}: {error}") from error


def streamed_rows(stream: BinaryIO, dialect: Dialect, notes: list[str]) -> Rows:
    """Rows of a stream such as stdin: JSONL if its first line is an object, else lines.

    Raises:
        DataError: It is not in the encoding that was told.
    """
    encoding = encoding_of(stream, dialect, notes)
    try:
        file = _as_text(stream, encoding)
        first = file.readline()
        lines = chain([first] if first else [], file)
        is_json = first.lstrip().startswith("{")
        yield from _checked(_jsonl_rows(lines) if is_json else _line_rows(lines), encoding)
        file.detach()  # the stream is not ours to close
    except UnicodeDecodeError as error:
        raise _not_in("stdin", encoding, error) from error


def _checked(rows: Rows, encoding: str) -> Rows:
    return ((line, row, fault or _undecoded(row, encoding)) for line, row, fault in rows)


def _not_in(where: str, encoding: str, error: UnicodeDecodeError) -> DataError:
    return DataError(f"{where} is not {encoding}: {error.reason}; give its own --encoding")


def _undecoded(row: Row, encoding: str) -> str:
    """What was wrong with the bytes of a row; empty if nothing was."""
    values = "".join(value for pair in row.items() for value in pair if value)
    if not (found := set(NO_TEXT.findall(values))):
        return ""
    if found == {NUL}:
        return "a NUL byte; text is expected"
    if codecs.lookup(encoding).name != "utf-8":
        return f"not {encoding}; give its own --encoding"
    return "not UTF-8; save it as UTF-8, or give --encoding such as latin-1"


def encoding_of(binary: BinaryIO | gzip.GzipFile, dialect: Dialect, notes: list[str]) -> str:
    """The encoding that is told, or that the first two bytes tell, or UTF-8.

    A told encoding that does not know its own mark has it read over.
    """
    start = binary.peek(4)[:4] if isinstance(binary, io.BufferedReader | gzip.GzipFile) else b""
    if dialect.encoding:
        mark = MARKS.get(codecs.lookup(dialect.encoding).name)
        if mark and start.startswith(mark):
            binary.read(len(mark))
        return dialect.encoding
    if start[:2] not in UTF_16:
        return "UTF-8"
    notes.append("UTF-16")
    return "UTF-16"


def _as_text(binary: BinaryIO | gzip.GzipFile, encoding: str) -> io.TextIOWrapper:
    """Bytes as text, whatever they are: those not UTF-8 become lone surrogates."""
    codec = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    return io.TextIOWrapper(binary, encoding=codec, errors="surrogateescape", newline="")


def _csv_rows(
    file: TextIO, ending: str, dialect: Dialect, labelled: bool | None, notes: list[str]
) -> Rows:
    taken, is_any = 0, False  # lines; the reader's own count leaves out those it cannot read
    header, usual = file.readline(), "\t" if ending == ".tsv" else ","

    def lines() -> Iterator[str]:
        nonlocal taken
        for line in chain([header] if header else [], file):
            taken += 1
            yield line.replace("\0", NUL)

    delimiter = dialect.separator or usual
    if labelled is not None:
        delimiter = dialect.delimiter_of(header, usual, labelled)
    if delimiter not in (usual, dialect.separator):
        notes.append(f"{DELIMITERS[delimiter]} between columns")
    reader = csv.DictReader(lines(), delimiter=delimiter)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:  # a field without end
            yield taken, {}, f"not {ending[1:].upper()}: {error}"
            continue
        if row is None:
            break
        is_any = True
        named = {key: value for key, value in row.items() if isinstance(key, str)}
        yield taken, named, ""
    names = names_of(header, delimiter)
    if not is_any and labelled is not None and not dialect.columns(names).is_any and names:
        yield 1, {}, dialect.no_header(len(names), labelled)


def _line_rows(lines: Iterable[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        yield number, {"text": line.rstrip("\r\n").replace("\0", NUL)}, ""


def _jsonl_rows(lines: Iterable[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, {}, f"not JSON: {error}"
            continue
        if not isinstance(row, dict):
            yield number, {}, "an object with `text` expected"
            continue
        yield number, {str(key): str(value) for key, value in row.items() if value is not None}, ""


def _parquet_rows(path: Path) -> Rows:
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
        columns = {str(key): "" if value is None else str(value) for key, value in row.items()}
        yield number, columns, ""
