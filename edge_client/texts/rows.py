"""Rows of files: CSV, TSV and JSONL, gzipped or not, and Parquet where pyarrow is installed."""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from edge_client.errors import WrongInput

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
NUL = "\udc00"  # in place of NUL bytes, which Python 3.10's csv does not read


# What is left of bytes that are not UTF-8, halves of surrogate pairs in JSON, and our NUL.
NO_TEXT = re.compile("[\ud800-\udfff]")
Row = Mapping[str, str]


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


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, str], str]]:
    """Line number, columns and what makes them unreadable, which is mostly nothing."""
    ending = ending_of(path)
    if ending == ".parquet":
        yield from _parquet_rows(path)
        return
    if ending not in FORMATS:
        raise DataError(f"{path}: {', '.join(FORMATS)} (.gz or not) expected")
    try:
        with _open_text(path) as file:
            rows = _jsonl_rows(file) if ending == ".jsonl" else _csv_rows(file, ending)
            yield from ((line, row, fault or _undecoded(row)) for line, row, fault in rows)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as UTF-8 {ending[1:]}: {error}") from error


def _undecoded(row: Row) -> str:
    """What was wrong with the bytes of a row; empty if nothing was."""
    values = "".join(value for pair in row.items() for value in pair if value)
    if not (found := set(NO_TEXT.findall(values))):
        return ""
    return "a NUL byte; text is expected" if found == {NUL} else "not UTF-8; save it as UTF-8"


def _open_text(path: Path) -> TextIO:
    """A file as text, whatever its bytes are: those not UTF-8 become lone surrogates."""
    file = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_rows(file: TextIO, ending: str) -> Iterator[tuple[int, dict[str, str], str]]:
    taken = 0  # lines; the reader's own count leaves out those it cannot read

    def lines() -> Iterator[str]:
        nonlocal taken
        for line in file:
            taken += 1
            yield line.replace("\0", NUL)

    reader = csv.DictReader(lines(), delimiter="\t" if ending == ".tsv" else ",")
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:  # a field without end
            yield taken, {}, f"not {ending[1:].upper()}: {error}"
            continue
        if row is None:
            return
        named = {key: value for key, value in row.items() if isinstance(key, str)}
        yield taken, named, ""


def _jsonl_rows(file: TextIO) -> Iterator[tuple[int, dict[str, str], str]]:
    for number, line in enumerate(file, start=1):
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


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, str], str]]:
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
