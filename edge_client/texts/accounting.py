"""Row accounting: every row of a file is read, or left out for a reason, and counted.

Law: rows = read + left out, for every reader. Messages about a row quote nothing of its text; a
label that the task lacks is named on this device, where it is one short word.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from smidgen.edge_client.formats.json_rows import type_name
from smidgen.edge_client.formats.source import (
    NUL_FOUND,
    SEVERAL,
    Columns,
    DataError,
    Dialect,
    Reason,
    find,
    named,
)

NAMED = 10  # rows left out that are named with their reasons
NUMBERS = (
    "numbers are names here, not places in a list: write the task's labels in the file, or the "
    "file's numbers in the task"
)
log = logging.getLogger(__name__)


@dataclass
class Accounting:
    """What became of the rows of a file.

    Attributes:
        read: Rows that gave a text.
        reasons: How many rows were left out, by reason.
        lines: Numbers of the rows that were left out, in their order; kept where each row is
            answered (`predict`, `evaluate`) alone, since there may be millions.
        faults: Line and reason of the first of them, those without a text aside.
        notes: How the file was read, where that was found out without being told.
    """

    read: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    lines: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def left_out(self) -> int:
        return self.reasons.total()

    @property
    def bad(self) -> int:
        """Rows that were left out, those without a text aside: these are no fault."""
        return self.left_out - self.reasons["empty"]

    @property
    def rows(self) -> int:
        return self.read + self.left_out

    def leave_out(self, reason: Reason, fault: str) -> None:
        """Leave a row out.

        Args:
            reason: The kind of reason.
            fault: Where it is and what was expected, in words that quote no text.
        """
        self.reasons[reason] += 1
        if reason != "empty" and len(self.faults) < NAMED:
            self.faults.append(fault)

    def as_json(self) -> dict[str, object]:
        reasons = {name: count for name, count in sorted(self.reasons.items()) if count}
        return {"rows": self.rows, "read": self.read, "left_out": reasons}

    def __str__(self) -> str:
        """How many of how many rows were left out, why, and the first of them."""
        counts = ", ".join(f"{count} {name}" for name, count in self.reasons.most_common() if count)
        rows = f"{self.left_out} of {self.rows} row{'s' * (self.rows > 1)} left out ({counts})"
        more = "; ..." if self.bad > len(self.faults) else ""
        return f"{rows}: {'; '.join(self.faults)}{more}" if self.faults else rows


def tell(path: Path | str, accounting: Accounting) -> None:
    """Say in the log how a file was read, and which rows are left out."""
    if accounting.notes:
        log.warning("%s is read with %s", path, ", ".join(accounting.notes))
    if accounting.bad:
        log.warning("%s: %s", path, accounting)
    elif accounting.left_out:
        log.info("%s: %s", path, accounting)


def useless(path: Path, accounting: Accounting) -> DataError:
    """The error of a file with rows none of which can be used."""
    if accounting.faults:
        what = "folder" if path.is_dir() else "file"
        fault = accounting.faults[0]
        fault = f"{path}, {fault}" if fault.startswith("line ") else fault
        return DataError(f"{fault}; no other line of the {what} can be used either")
    return DataError(f"{path} holds no texts: {accounting}")


class Fault(NamedTuple):
    """Why a row cannot be used, by reason and in words."""

    reason: Reason
    said: str


def missing_column(
    names: Sequence[str], columns: Columns, dialect: Dialect, labelled: bool, is_table: bool
) -> str:
    """Which column is not there; names that may be a text are counted, never quoted.

    Args:
        names: All columns.
        columns: Which of them hold what.
        dialect: How the file is written down.
        labelled: Whether a column `label` is expected.
        is_table: Whether the names stand in a first line.
    """
    if not columns.is_any:
        return dialect.no_header(len(names), labelled, is_table)
    column, wanted = "", dialect.text_column or "text"
    if columns.text is None:
        column = f"`{wanted}`" if dialect.text_column else "`text` (or `text_a`)"
    elif labelled and columns.label is None:
        column = f"`{dialect.label_column or 'label'}`"
    option = "--text-column" if columns.text is None else "--label-column"
    is_named = dialect.text_column if columns.text is None else dialect.label_column
    remedy = "" if is_named or not dialect.option else f"; {option} names another"
    return f"no column {column}; found {named(names)}{remedy}" if column else ""


def fault_of(row: Mapping[str, Any], columns: Columns) -> Fault | None:
    """Why a row cannot be used, whatever its label; None if it can, or if it holds no text."""
    used = [columns.text, columns.text_b]
    for name in used:
        if name is not None and not isinstance(value := row.get(name), str | None):
            return Fault(
                "not text", f"`{named([name])}` is {type_name(value)}; a string is expected"
            )
    if odd := odd_value(row, columns.language) or odd_value(row, columns.id):
        return odd
    used += [columns.label, columns.language, columns.id]
    values = [row.get(name) for name in used if name is not None]
    if any("\0" in value for value in values if isinstance(value, str)):
        return Fault("unreadable", NUL_FOUND)
    return None


def label_of(row: Mapping[str, Any], columns: Columns, labels: Sequence[str]) -> str | Fault:
    """The one label of a row that holds a text, or why it has none.

    Args:
        row: Its columns.
        columns: Which of them hold what.
        labels: Those that are known; empty: any will do.
    """
    value = row.get(columns.label) if columns.label is not None else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        hint = f"; {SEVERAL}" if isinstance(value, list) else ""
        return Fault(
            "not text",
            f"`{named([columns.label or ''])}` is {type_name(value)}; a string is expected{hint}",
        )
    label = value_of(row, columns.label)
    fault = "" if label and not labels else not_known(label, value_of(row, columns.text), labels)
    return Fault("label", fault) if fault else label


def odd_value(row: Mapping[str, Any], column: str | None) -> Fault | None:
    """Why a column such as `id` says nothing; None if it does, or is not there."""
    value = row.get(column) if column is not None else None
    if not isinstance(value, dict | list | bytes | bool) and value == value:
        return None
    return Fault(
        "not text", f"`{named([column or ''])}` is {type_name(value)}; a string is expected"
    )


def not_known(label: str, text: str, labels: Sequence[str]) -> str:
    """Why a label is none of those that are known; empty if it is."""
    if label in labels:
        return ""
    known = named(labels)
    if not label:
        return f"no label; {f'one of {known}' if labels else 'a label'} is expected"
    if text in labels:
        return f"label is not one of {known}, but the text is; are the columns swapped?"
    is_short = len(label) <= 24 and len(label.split()) == 1  # else it may be a text, misplaced
    said = f"label {label!r} is not one of {known}" if is_short else f"label is not one of {known}"
    if alike := find(labels, label):
        return f"{said}; it differs from {named([alike])} in case or spaces"
    is_list = len(parts := label.split("|")) > 1 and all(one.strip() in labels for one in parts)
    hint = f"; {SEVERAL}" if is_list else f"; {NUMBERS}" if is_number(label) else ""
    return f"{said}{hint}"


def is_number(label: str) -> bool:
    """Whether a label is a whole number, which may be meant as a place in a list."""
    return label.removeprefix("-").isdecimal() and len(label) < 10


def is_other_count(label: str, labels: Sequence[str]) -> bool:
    """Whether a number that is no label counts as the labels do, which then begin elsewhere.

    Such as 0 where labels are 1, 2, 3: the other numbers of the file mean other labels than the
    task's of the same names.
    """
    if label in labels or not (is_number(label) and labels and all(map(is_number, labels))):
        return False
    numbers = [int(one) for one in labels]
    return int(label) in (min(numbers) - 1, max(numbers) + 1)


def value_of(row: Mapping[str, Any], column: str | None) -> str:
    """What a row says in a column; empty if there is none, or nothing in it."""
    value = row.get(column) if column is not None else None
    return "" if value is None else str(value)
