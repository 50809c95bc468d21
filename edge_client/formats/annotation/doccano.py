"""doccano exports (JSONL, JSON), and files for correction in doccano.

    {"id": 1, "text": "charged twice", "label": ["bill"], "Comments": []}
    {"id": 2, "text": "Ann Lee left", "label": [[0, 7, "PER"]]}
    {"id": 3, "text": "Ann Lee left", "entities": [{"id": 1, "label": "PER", "start_offset": 0, ...

A project with shared annotation puts everybody's choices for a text into one list: two labels may
be one person's or two people's. Exports do not say whether a text was looked at; one without a span
is read as a text without entities, and counted in a note.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation.answers import (
    AnnotatedRow,
    Annotation,
    Proposal,
    Span,
    first_object,
    id_of,
    labels_of,
    list_in,
    object_in,
    span_of,
    string_fields,
    text_columns,
    text_of,
)
from smidgen.edge_client.formats.source import GENERIC, Dialect, Row, Wants

LABELS = ("label", "labels", "cats")
SPANS = ("entities", "label", "labels", "annotations")


def answered(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    """Each row with its text and its labels.

    Where labels are wanted, a field that holds names is not one of spans, whatever else it holds.

    Raises:
        ValueError: Which field is the text is not known.
    """
    fields = [row.columns for row in rows]
    columns = text_columns([one for one in string_fields(fields) if one != "id"], dialect, ["data"])
    span = next((one for one in _named(dialect, SPANS) if _holds(fields, one, list, dict)), "")
    labels = (one for one in _named(dialect, LABELS) if one != span or wants == "label")
    label = next((one for one in labels if _holds(fields, one, str, int, float)), "")
    span = "" if label and wants == "label" else span
    if wants != "text" and any(row.get("relations") for row in fields):
        notes.append("its relations left aside")
    if wants != "text" and span and (bare := sum(not row.get(span) for row in fields)):
        notes.append(f"{bare} texts without a span as texts without entities")
    for row in rows:
        texts = Row(row.line, text_of(row.columns, columns) | id_of(row.columns))
        try:
            given = _answer(row.columns, label, span)
        except ValueError as error:
            yield AnnotatedRow(texts, (), "ambiguous", str(error))
        else:
            none = f"no `{label or span or LABELS[0]}`: nobody has labelled it yet"
            yield AnnotatedRow(texts, () if given is None else (given,), said=none)


def _named(dialect: Dialect, usual: Sequence[str]) -> Sequence[str]:
    return (dialect.label_column,) if dialect.label_column else usual


def _holds(rows: Sequence[Mapping[str, Any]], name: str, *kinds: type) -> bool:
    """Whether a field holds lists of such values."""
    lists = (row[name] for row in rows if isinstance(row.get(name), list))
    return any(isinstance(one, kinds) for found in lists for one in found)


def _answer(fields: Mapping[str, Any], label: str, span: str) -> Annotation | None:
    """What a row says; None: nothing.

    Raises:
        ValueError: A span is not one, or numbers stand where names are expected.
    """
    values = [fields[label]] if isinstance(fields.get(label), str) else fields.get(label)
    has_numbers = isinstance(values, int | float) or _holds([fields], label, int, float)
    demand(not has_numbers, f"`{label}` holds numbers; names of labels are expected")
    labels = labels_of(values) if isinstance(values, list) else ()
    if not span:
        return Annotation(labels) if labels or values == [] else None
    return Annotation(labels, tuple(map(_span, list_in(fields.get(span)))))


def _span(value: Any) -> Span:
    if isinstance(value, list) and len(value) == 3:
        return span_of(*value)
    one = object_in(value)
    return span_of(one.get("start_offset"), one.get("end_offset"), one.get("label"))


@contextmanager
def writing(file: TextIO, version: str) -> Iterator[Callable[[Proposal], None]]:
    """Writes texts with their labels or spans; call what is given for each.

    Only ASCII: doccano guesses the encoding of what it imports.

    Args:
        file: The file.
        version: What made the labels; doccano keeps it, and the score, beside the text.
    """

    def write(proposal: Proposal) -> None:
        label = [proposal.label] if proposal.spans is None else [*map(list, proposal.spans)]
        score = {} if proposal.score is None else {"score": proposal.score}
        row = {"model_version": version, **score, **proposal.data(), "label": label}
        file.write(json.dumps(row) + "\n")

    yield write


def sniff(text: str) -> float:
    """How surely a file that begins so is doccano's: it has lists for labels beside a text.

    Names alone in them, without the id that doccano gives each text, are anybody's.
    """
    first = first_object(text)
    is_text = isinstance(first.get("text", first.get("data")), str) and "tokens" not in first
    is_text = is_text and not isinstance(first.get("label"), str)  # which is a label by itself
    lists = [one for name in {*LABELS, *SPANS} if isinstance(one := first.get(name), list)]
    if not (is_text and lists):
        return 0.0
    is_own = "id" in first or any(not isinstance(one, str) for found in lists for one in found)
    return (0.8 if is_own else GENERIC) + 0.1 * ("Comments" in first)
