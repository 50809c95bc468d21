"""One kind of record for everything measured: training, models, wire, rounds, soak.

A record says what was measured (its subject), what came out (its figures, in base units, every
repetition kept), and what must agree before two of them may be compared (its conditions). It never
changes once written; a file of records is JSON Lines (`profiling.records.file`).

    figures = {"step_s": Figure((3.1, 3.2), "clock"), "peak_rss_bytes": Figure((5e8,), "VmHWM")}
    record = Record("train", {"base": "roberta-base", "engine": "onnx"}, figures, conditions)
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any, Literal
from uuid import uuid4

import msgspec

from edge_client.errors import WrongInput

SCHEMA = 1
Kind = Literal["train", "model", "grid", "wire", "fleet", "round", "soak"]
Source = Literal["measured", "estimated", "published"]
Better = Literal["lower", "higher"]
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
    better: Better = "lower"
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
        machine: Where it was measured: `asdict` of `instruments.machine.Machine`, its load apart.
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
        """Equal for records of the same thing."""
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
    """A record as one line of JSON; `from_line` gives an equal record back."""
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
    if schema is None:
        raise RecordError("not a record of smidgen profile")
    if schema != SCHEMA:
        raise RecordError(f"a record of schema {schema}; this smidgen reads schema {SCHEMA}")
    try:
        return msgspec.convert(raw, Record)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise RecordError(f"not a record of schema {SCHEMA}: {error}") from error
