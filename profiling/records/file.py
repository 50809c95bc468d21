"""Files of records: JSON Lines that only grow, so that a killed benchmark loses one record at most.

A last line that was cut short by a crash is not counted: reading tells it, and appending begins a
new line after what is whole. A file of anything else is never written to.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling.records.record import Record, RecordError, from_line, to_line

START = b'{"conditions":'  # of every record: names are sorted


@dataclass(frozen=True)
class Records:
    """What a file held.

    Attributes:
        records: In the order they were written; of one thing measured twice both are there.
        note: What was left out, in one line; empty where nothing was.
    """

    records: tuple[Record, ...]
    note: str = ""


def read_records(path: Path) -> Records:
    """Read a file of records.

    Raises:
        RecordError: It cannot be read, or a line before the last is not a record; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read as records: {error}") from error
    rows = text.splitlines()
    records = list(_records(path, rows, is_whole=text.endswith("\n")))
    if rows and not text.endswith("\n") and len(records) < len(rows):
        note = f"{path}, line {len(rows)} is cut short and left out"
        return Records(tuple(records), f"{note}; the same command measures it again")
    return Records(tuple(records))


def _records(path: Path, rows: list[str], is_whole: bool) -> Iterator[Record]:
    for number, row in enumerate(rows, start=1):
        try:
            yield from_line(row)
        except RecordError as error:
            if number == len(rows) and not is_whole and _is_cut(row):
                return
            raise RecordError(f"{path}, line {number}: {error}; move the file away") from error


def append(path: Path, records: Iterable[Record]) -> None:
    """Write records behind those that are there, and to disk; a half line in front goes.

    Raises:
        RecordError: The file holds something else, which is left as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        data = file.read()
        whole = data.rfind(b"\n") + 1
        first, last = data[: data.find(b"\n") + 1], data[whole:]
        is_half = _is_cut(last) and bool(first or last[: len(START)] == START[: len(last)])
        for line in (first, b"" if is_half else last):
            _demand_record(path, line)
        if is_half:
            file.truncate(whole)
        elif last:
            file.write(b"\n")
        for record in records:
            file.write(to_line(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _is_cut(line: str | bytes) -> bool:
    """Whether a line is not whole, as one that a crash cut short."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _demand_record(path: Path, line: bytes) -> None:
    try:
        if line:
            from_line(line.decode())
    except (UnicodeDecodeError, RecordError) as error:
        raise RecordError(f"{path} is not a file of records: {error}; move it away") from error
