"""One record format for everything measured: training, models, wire, rounds, soak.

A record says what was measured (its subject), the results (its figures, in base units, every
repetition kept), and what must agree before two of them may be compared (its conditions). It never
changes once written; a file of records is JSON Lines.

    figures = {"step_s": Figure((3.1, 3.2), "clock"), "peak_rss_bytes": Figure((5e8,), "VmHWM")}
    record = Record("train", {"base": "roberta-base", "engine": "onnx"}, figures, conditions)
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Literal
from uuid import uuid4

import msgspec

from smidgen.edge_client.errors import WrongInput, demand

SCHEMA = 1
Kind = Literal["train", "model", "grid", "wire", "fleet", "round", "soak"]
Source = Literal["measured", "estimated", "published"]
Plain = str | int | float | bool | None


class RecordError(WrongInput):
    """A file of records that cannot be read, or records that cannot be compared."""


@dataclass(frozen=True)
class Figure:
    """One figure with all its repetitions; its unit is the end of its name, such as `step_s`.

    Attributes:
        values: Every repetition, in base units; at least one.
        instrument: What measured it, or the formula or table it is from.
        better: Which way is better.
        source: Measured, estimated by a formula, or published by somebody else.
        level: Difference that is none, however large beside the figure: of what may be 0 or less,
            such as growth.
    """

    values: tuple[float, ...]
    instrument: str
    better: Literal["lower", "higher"] = "lower"
    source: Source = "measured"
    level: float = 0.0

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values: one number or more")

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True)
class Conditions:
    """What must agree before two records may be compared figure by figure.

    Attributes:
        machine: Where it was measured: `instruments.environment.Machine` without its load.
        versions: Versions of Python and the libraries; None where one is not installed.
        base_id: SHA-256 of the base pack; empty where none takes part.
        plan: How a step is computed, or None.
        seed: Root seed.
        isa: What the libraries were held to, such as `avx2`; empty for all that the processor has.
        load_1m: Load average before; for warnings, it need not agree.
    """

    machine: dict[str, Any]
    versions: dict[str, str | None]
    base_id: str = ""
    plan: dict[str, Any] | None = None
    seed: int = 0
    isa: str = ""
    load_1m: float = 0.0


@dataclass(frozen=True)
class Record:
    """One thing measured.

    Attributes:
        kind: Which benchmark.
        subject: What was measured; records of equal kind and subject are of the same thing.
        figures: What came out, by name.
        conditions: What must agree.
        outcome: `done`, or in one line how it ended.
        session: Names the command that wrote it: records of one session had the machine in turn.
        is_peer: Whether somebody else's method was measured, beside which ours is held.
        details: What else a reader may want to know, such as where predicted bytes go.
        taken_at: UTC, ISO 8601.
        schema: Version of this form.
    """

    kind: Kind
    subject: dict[str, Plain]
    figures: dict[str, Figure]
    conditions: Conditions
    outcome: str = "done"
    session: str = ""
    is_peer: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    taken_at: str = field(default_factory=lambda: now())
    schema: int = SCHEMA

    @property
    def is_done(self) -> bool:
        return self.outcome == "done"

    @property
    def key(self) -> str:
        return json.dumps([self.kind, self.subject], sort_keys=True)

    @property
    def name(self) -> str:
        return ", ".join(str(value) for value in self.subject.values() if value not in (None, ""))

    def median(self, figure: str) -> float | None:
        found = self.figures.get(figure)
        return None if found is None else found.median


def last_part(base: str) -> str:
    return Path(base).name or base


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_session() -> str:
    return uuid4().hex[:12]


def to_line(record: Record) -> str:
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":"))


def from_line(line: str) -> Record:
    """Read one line.

    Raises:
        RecordError: It is not a record, or one of another schema.
    """
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise RecordError("not a whole line of JSON") from error
    schema = raw.get("schema") if isinstance(raw, Mapping) else None
    demand(schema is not None, "not a record of smidgen profile", RecordError)
    if schema != SCHEMA:
        raise RecordError(f"a record of schema {schema}; this smidgen reads schema {SCHEMA}")
    try:
        return msgspec.convert(raw, Record)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise RecordError(f"not a record of schema {SCHEMA}: {error}") from error


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
        raise RecordError(
            f"{path} cannot be read as records: {getattr(error, 'strerror', error)}"
        ) from error
    rows = text.splitlines()
    records = list(_records(path, rows, is_whole=text.endswith("\n")))
    if rows and not text.endswith("\n") and len(records) < len(rows):
        return Records(
            tuple(records),
            f"{path}, line {len(rows)} is cut short and left out"
            f"; the same command measures it again",
        )
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
