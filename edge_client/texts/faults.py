"""What is wrong with a row of a table, in words that quote nothing of its text."""

from collections.abc import Sequence

from edge_client.tables import plain
from edge_client.formats.dialect import Columns, Dialect, find
from edge_client.formats.opened import NUL_FOUND, Row

NAMED = 12  # labels and columns that a message names
LONGEST_NAMED = 60  # characters of one of them


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


def named(names: Sequence[str]) -> str:
    """Labels or columns in a message: printable, and not too many."""
    more = f" ... ({len(names)})" if len(names) > NAMED else ""
    return ", ".join(plain(name)[:LONGEST_NAMED] for name in names[:NAMED]) + more


def fault_of(row: Row, columns: Columns, labels: Sequence[str], labelled: bool) -> str:
    """Why a row cannot be used; empty if it can, or if it holds no text."""
    if any("\0" in value for value in row.values() if value):
        return NUL_FOUND
    text, label = value_of(row, columns.text), value_of(row, columns.label)
    if not labelled or not text.strip() or (label in labels if labels else label):
        return ""
    known = named(labels)
    if not label:
        return f"no label; {f'one of {known}' if labels else 'a label'} is expected"
    if text in labels:
        return f"label is not one of {known}, but the text is; are the columns swapped?"
    if alike := find(labels, label):
        return f"label is not one of {known}; it differs from {named([alike])} in case or spaces"
    return f"label is not one of {known}"


def value_of(row: Row, column: str | None) -> str:
    """What a row says in a column; empty if there is none."""
    return (row.get(column) if column is not None else "") or ""  # a short CSV row leaves None
