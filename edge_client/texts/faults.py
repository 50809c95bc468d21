"""What is wrong with a row, in words that quote nothing of its text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edge_client.formats.dialect import Columns, Dialect, find, named
from edge_client.formats.json_rows import type_name
from edge_client.formats.opened import NUL_FOUND
from edge_client.formats.reader import Reason

NUMBERS = (
    "numbers are names here, not places in a list: write the task's labels in the file, or the "
    "file's numbers in the task"
)


class Fault(NamedTuple):
    """Why a row cannot be used."""

    reason: Reason
    said: str


def missing_column(
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
    return f"no column {column}; found {named(names)}" if column else ""


def fault_of(
    row: Mapping[str, Any], columns: Columns, labels: Sequence[str], labelled: bool
) -> Fault | None:
    """Why a row cannot be used; None if it can, or if it holds no text."""
    used = [columns.text, columns.text_b]
    for name in used:
        if name is not None and not isinstance(value := row.get(name), str | None):
            said = f"`{named([name])}` is {type_name(value)}; a string is expected"
            return Fault("not text", said)
    if odd := odd_value(row, columns.language) or odd_value(row, columns.id):
        return odd
    used += [columns.label, columns.language, columns.id]
    values = [row.get(name) for name in used if name is not None]
    if any("\0" in value for value in values if isinstance(value, str)):
        return Fault("unreadable", NUL_FOUND)
    text = value_of(row, columns.text)
    if not labelled or not text.strip():
        return None
    value = row.get(columns.label) if columns.label is not None else None
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        said = f"`{named([columns.label or ''])}` is {type_name(value)}; a string is expected"
        return Fault("not text", said)
    label = value_of(row, columns.label)
    said = "" if label and not labels else _of_label(label, text, labels)
    return Fault("label", said) if said else None


def odd_value(row: Mapping[str, Any], column: str | None) -> Fault | None:
    """Why a column such as `id` says nothing; None if it does, or is not there."""
    value = row.get(column) if column is not None else None
    if not isinstance(value, dict | list | bytes | bool) and value == value:
        return None
    said = f"`{named([column or ''])}` is {type_name(value)}; a string is expected"
    return Fault("not text", said)


def _of_label(label: str, text: str, labels: Sequence[str]) -> str:
    """Why a label is none of those that are known; empty if it is."""
    if label in labels:
        return ""
    known = named(labels)
    if not label:
        return f"no label; {f'one of {known}' if labels else 'a label'} is expected"
    if text in labels:
        return f"label is not one of {known}, but the text is; are the columns swapped?"
    if alike := find(labels, label):
        return f"label is not one of {known}; it differs from {named([alike])} in case or spaces"
    hint = f"; {NUMBERS}" if is_number(label) else ""
    return f"label is not one of {known}{hint}"


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
