"""Rows of files: CSV, TSV, JSONL and lines, gzipped or not, and Parquet where pyarrow is there."""

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edge_client.errors import WrongInput, demand
from edge_client.tables import plain
from edge_client.texts.dialect import DELIMITERS, PLAIN, Dialect, names_of
from edge_client.texts.lines import LONGEST_LINE, Bounds, Lines, LongLine, TooMuch, Whole

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

BATCH_ROWS = 256  # of Parquet, decoded at once
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
NUL_FOUND = "a NUL byte; text is expected"
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
    bounds: Bounds | None = None,
) -> Rows:
    """Line number, columns and what makes them unreadable, which is mostly nothing.

    Args:
        path: The file; its ending says the format.
        dialect: How it is written down.
        labelled: Whether a label column is wanted beside a text; None: whatever columns there are.
        notes: Gets what was found out without being told.
        bounds: What is read at most; None: the whole file, for whoever holds no rows.

    Raises:
        DataError: No such format, the file cannot be read at all, or it holds too much.
    """
    ending, found = ending_of(path), notes if notes is not None else []
    if ending == ".parquet":
        yield from _parquet_rows(path, bounds)
        return
    if ending not in (*FORMATS, LINES):
        raise DataError(f"{path}: {', '.join(FORMATS)} (.gz or not) expected")
    with opened(path, dialect, found, bounds) as (lines, encoding):
        if ending in (".csv", ".tsv"):
            rows = _csv_rows(lines, ending, dialect, labelled, found)
        else:
            rows = _jsonl_rows(lines) if ending == ".jsonl" else _line_rows(lines)
        yield from _checked(rows, encoding)


@contextmanager
def opened(
    path: Path,
    dialect: Dialect,
    notes: list[str],
    bounds: Bounds | None,
    whole: Whole | None = None,
) -> Iterator[tuple[Lines, str]]:
    """The lines of a file, gzipped or not, and the name of their encoding.

    Args:
        path: The file.
        dialect: How it is written down.
        notes: Gets what was found out without being told.
        bounds: What is read at most; None: all.
        whole: The folder that it is a part of, and what was read of that; None: it stands alone.

    Raises:
        DataError: It cannot be read, or holds too much; also while its lines are read.
    """
    encoding, whole = dialect.encoding or "UTF-8", whole or Whole(path)
    try:
        with gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb") as binary:
            encoding = encoding_of(binary, dialect, notes)
            with _as_text(binary, encoding) as file:
                yield Lines(file, bounds, whole), encoding
    except TooMuch as error:
        raise DataError(f"{whole.path} holds {error}, or split it among devices") from error
    except LongLine as error:
        raise DataError(f"{path}, line 1: {error}") from error
    except UnicodeError as error:  # UTF-16 without its mark is no UnicodeDecodeError
        raise _not_in(str(path), encoding, error) from error
    except (OSError, EOFError, zlib.error) as error:
        ending = ending_of(path)[1:]
        raise DataError(f"{path} cannot be read as {encoding} {ending}: {error}") from error


def streamed_rows(stream: BinaryIO, dialect: Dialect, notes: list[str]) -> Rows:
    """Rows of a stream such as stdin: JSONL if its first line is an object, else lines.

    Raises:
        DataError: It is not in the encoding that was told.
    """
    encoding = encoding_of(stream, dialect, notes)
    try:
        file = _as_text(stream, encoding)
        lines = Lines(file)
        is_json = lines.first().lstrip().startswith("{")
        yield from _checked(_jsonl_rows(lines) if is_json else _line_rows(lines), encoding)
        file.detach()  # the stream is not ours to close
    except UnicodeError as error:
        raise _not_in("stdin", encoding, error) from error


def _checked(rows: Rows, encoding: str) -> Rows:
    return ((line, row, fault or _unread(row, encoding)) for line, row, fault in rows)


def _not_in(where: str, encoding: str, error: UnicodeError) -> DataError:
    reason = error.reason if isinstance(error, UnicodeDecodeError) else error
    return DataError(f"{where} is not {encoding}: {reason}; give its own --encoding")


def _unread(row: Row, encoding: str) -> str:
    """What was wrong with the bytes of a row; empty if nothing was."""
    return undecoded("".join(value for pair in row.items() for value in pair if value), encoding)


def undecoded(text: str, encoding: str) -> str:
    """What was wrong with the bytes of a text as it was read; empty if nothing was."""
    if not (found := set(NO_TEXT.findall(text))):
        return ""
    if found == {NUL}:
        return NUL_FOUND
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
    lines: Lines, ending: str, dialect: Dialect, labelled: bool | None, notes: list[str]
) -> Rows:
    is_any, header, usual = False, lines.first(), "\t" if ending == ".tsv" else ","
    if lines.is_first_long:
        raise LongLine(f"longer than {LONGEST_LINE:,} characters, and it names the columns")
    delimiter = dialect.separator or usual
    if labelled is not None:
        delimiter = dialect.delimiter_of(header, usual, labelled)
    if delimiter not in (usual, dialect.separator):
        notes.append(f"{DELIMITERS[delimiter]} between columns")
    # Its own count leaves out the lines it cannot read.
    reader = csv.DictReader(map(_without_nul, lines), delimiter=delimiter, restval="")
    while True:
        lines.begin_row()
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield lines.number, {}, f"not {ending[1:].upper()}: {error}"
            continue
        except LongLine as error:
            yield lines.number, {}, str(error)
            continue
        if row is None:
            break
        is_any = True
        named = {key: value for key, value in row.items() if isinstance(key, str)}
        yield lines.number, named, _surplus(row, delimiter)
    names = names_of(header, delimiter)
    if not is_any and labelled is not None and not dialect.columns(names).is_any and names:
        yield 1, {}, dialect.no_header(len(names), labelled)


def _surplus(row: Mapping[str | None, str | list[str]], delimiter: str) -> str:
    """What is wrong with a row that has more than the header; empty columns are nothing."""
    more = row.get(None, ())
    if not any(more):
        return ""
    columns = f"{len(more)} column{'s' if len(more) > 1 else ''}"
    sign = DELIMITERS.get(delimiter, repr(delimiter))
    return f"{columns} more than the first line names; put quotes around a text with {sign} in it"


def _without_nul(line: str) -> str:
    return line.replace("\0", NUL)


def each_line(lines: Lines, *, is_row: bool = True) -> Iterator[tuple[int, str, str]]:
    """Number, line and what is wrong with it.

    Args:
        lines: The file.
        is_row: Whether each line is a row by itself; else the caller says where one begins.
    """
    while True:
        if is_row:
            lines.begin_row()
        try:
            line = next(lines, None)
        except LongLine as error:
            yield lines.number, "", str(error)
            continue
        if line is None:
            return
        yield lines.number, line, ""


def _line_rows(lines: Lines) -> Rows:
    for number, line, fault in each_line(lines):
        yield number, {} if fault else {"text": _without_nul(line.rstrip("\r\n"))}, fault


def _jsonl_rows(lines: Lines) -> Rows:
    for number, line, fault in each_line(lines):
        if fault or not line.strip():
            if fault:
                yield number, {}, fault
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


def _parquet_rows(path: Path, bounds: Bounds | None) -> Rows:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path}: pip install pyarrow to read Parquet, or save it as CSV"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_parquet(path, file.metadata, bounds)
            batches = file.iter_batches(BATCH_ROWS)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                columns = {str(key): "" if one is None else str(one) for key, one in row.items()}
                is_long = sum(map(len, columns.values())) > LONGEST_LINE
                fault = f"longer than {LONGEST_LINE:,} characters" if is_long else ""
                yield number, {} if is_long else columns, fault
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        told = plain(str(error))[:200]
        raise DataError(f"{path} cannot be read as Parquet: {told}") from error


def _check_parquet(path: Path, metadata: "FileMetaData", bounds: Bounds | None) -> None:
    """Refuse by what a file says of itself; memory that pages need is told by their columns."""
    if bounds is None:
        return
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    more = "keep less, or split it among devices"
    demand(
        metadata.num_rows <= bounds.lines,
        f"{path} holds more than {bounds.lines:,} rows; {more}",
        DataError,
    )
    demand(
        size <= bounds.characters,
        f"{path} holds more than {bounds.characters:,} bytes unpacked; {more}",
        DataError,
    )
