"""Readers of annotation tools' exports, recognized by their contents.

read(Source(Path("labelled.json"), "label"))  # a Label Studio export, by what is in it
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation import argilla, doccano, label_studio, prodigy
from smidgen.edge_client.formats.annotation import label_studio_rows as rows
from smidgen.edge_client.formats.annotation.answers import AnnotatedRow, answered_in
from smidgen.edge_client.formats.arrow import ANY
from smidgen.edge_client.formats.json_rows import array_items, line_items, objects_in, strings_in
from smidgen.edge_client.formats.lines import LongLine
from smidgen.edge_client.formats.source import (
    MARK,
    MOST_ARRAY,
    PLAIN,
    DataError,
    Dialect,
    Head,
    LeftOut,
    Reason,
    Row,
    Rows,
    Source,
    Wants,
    head_of,
    named,
)

Reading: TypeAlias = Callable[[Sequence[Row], Dialect, Wants, list[str]], Iterator[AnnotatedRow]]

JSON = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class Export:
    """What a tool exports.

    Attributes:
        name: What people call the format.
        endings: Endings of its files, such as `.json`.
        marks: How surely a file that begins so is of this format.
        items: The rows of a file as JSON or a table has them.
        beginning: The same of a file's beginning, as far as it holds rows whole.
        reading: What annotators answered, for each of these rows.
    """

    name: str
    endings: tuple[str, ...]
    marks: Callable[[str], float]
    items: Callable[[Source], Rows]
    beginning: Callable[[Head], Iterator[Row]]
    reading: Reading

    def sniff(self, head: Head) -> float:
        return self.marks(head.text)

    def gives(self, head: Head) -> frozenset[Wants]:
        """See `Reader`; by what annotators answered in the rows that the beginning holds whole."""
        try:
            some = list(self.beginning(head))
            readings = (self.reading(some, PLAIN, wants, []) for wants in ANY - {"text"})
            answers = [one for reading in readings for row in reading for one in row.answers]
        except ValueError:  # it depends on what the user says
            return ANY
        has_labels = any(answer.labels for answer in answers)
        has_spans = any(answer.spans is not None for answer in answers)
        return ANY if has_labels == has_spans else ANY - {"tags" if has_labels else "label"}

    def read(self, source: Source) -> Rows:
        """See `Reader`; columns that the user names are called as ours are from then on."""
        dialect = source.dialect
        is_small = source.stream is not None or source.path.stat().st_size <= MOST_ARRAY
        demand(
            is_small,
            f"{source.path} is larger than {MOST_ARRAY >> 20} MiB, and an export is held whole"
            f"; split it",
            DataError,
        )

        def reading(some: Sequence[Row]) -> Iterator[AnnotatedRow]:
            return self.reading(some, dialect, source.wants, source.notes)

        try:
            found = answered_in(
                self.items(source), reading, source.wants, source.notes, source.is_several
            )
            source.dialect = replace(dialect, text_column="", label_column="")
            yield from found
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"{source.path}: {self.name}: {error}") from error


def json_items(source: Source) -> Rows:
    """The objects of JSON lines or of one array, whatever the file is called."""
    start = head_of(source.path, source.dialect).lstrip(MARK + " \t\r\n")
    items = array_items if start.startswith("[") else line_items
    for number, found, fault in items(source):
        if fault:
            yield LeftOut(number, "too long" if fault.startswith("longer") else "unreadable", fault)
        elif found.twice:
            said = f"two values of `{named(found.twice[:1])}`; one is expected"
            yield LeftOut(number, "ambiguous", said)
        elif unread := source.unread("".join(strings_in(found))):
            yield LeftOut(number, "unreadable", unread)
        else:
            yield Row(number, found)


def json_beginning(head: Head) -> Iterator[Row]:
    return (Row(number, one) for number, one in enumerate(objects_in(head), start=1))


def table_items(source: Source) -> Rows:
    """The rows of a table in which every text is quoted, so that no quote is a character."""
    with source.lines() as lines:
        delimiter = source.dialect.separator or rows.delimiter_of(lines.first())
        reader = csv.DictReader(lines, delimiter=delimiter, restval="", strict=True)
        names = list(reader.fieldnames or ())
        twice = named([name for name in dict.fromkeys(names) if names.count(name) > 1])
        demand(not twice, f"{source.path}: two columns are called {twice}; rename one", DataError)
        while True:
            lines.begin_row()
            try:
                row: dict[str | None, Any] | None = next(reader, None)
            except (csv.Error, LongLine) as error:
                reason: Reason = "too long" if isinstance(error, LongLine) else "unreadable"
                yield LeftOut(lines.number, reason, f"not a row of a table: {error}")
                continue
            if row is None:
                return
            if row.pop(None, None):
                yield LeftOut(lines.number, "columns", "more columns than the first line names")
            elif unread := source.unread("".join(row.values())):
                yield LeftOut(lines.number, "unreadable", unread)
            else:
                yield Row(lines.number, {str(name): one for name, one in row.items()})


def table_beginning(head: Head) -> Iterator[Row]:
    text = head.text.removeprefix(MARK)
    delimiter = rows.delimiter_of(text.partition("\n")[0])
    try:
        found = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, restval=""))
    except csv.Error:
        return iter(())
    return (Row(number, one) for number, one in enumerate(found[:-1] or found, start=1))


def _studio(
    reading: Callable[[Sequence[Row], Dialect, bool], Iterator[AnnotatedRow]],
) -> Reading:
    return lambda some, dialect, wants, _: reading(some, dialect, wants != "text")


EXPORTS = (
    Export(
        *("a Label Studio export (JSON)", JSON, label_studio.sniff),
        *(json_items, json_beginning, _studio(label_studio.in_json)),
    ),
    Export(
        *("a Label Studio export (JSON_MIN)", JSON, rows.sniff_json_min),
        *(json_items, json_beginning, _studio(rows.in_json_min)),
    ),
    Export(
        *("a Label Studio export (CSV, TSV)", (".csv", ".tsv"), rows.sniff_table),
        *(table_items, table_beginning, _studio(rows.in_table)),
    ),
    Export("a doccano export", JSON, doccano.sniff, json_items, json_beginning, doccano.answered),
    Export("a Prodigy export", JSON, prodigy.sniff, json_items, json_beginning, prodigy.answered),
    Export("an Argilla export", JSON, argilla.sniff, json_items, json_beginning, argilla.answered),
)
