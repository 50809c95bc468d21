"""Prodigy JSON lines: a text with a `label`, `accept`ed options or `spans`, and an `answer`.

    {"text": "charged twice", "label": "bill", "answer": "accept", "_input_hash": 12}

A row is a question with its answer; only accepted rows count. Rows with one `_input_hash` are one
text that was asked several times, such as once per label or annotator.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from smidgen.edge_client.formats.annotation.answers import (
    AnnotatedRow,
    Annotation,
    Span,
    first_object,
    id_of,
    labels_of,
    object_in,
    span_of,
    string_fields,
    text_columns,
    text_of,
)
from smidgen.edge_client.formats.source import Dialect, Row, Wants

ANSWERS = ("accept", "reject", "ignore")
MEDIA = ("image", "audio", "video", "pages")  # what Prodigy asks about beside texts
NOT_TEXTS = ("answer", "label", "id", "html")  # fields of strings


def answered(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    """Each row with its text and what was answered.

    Raises:
        ValueError: The rows are not about texts, or which field is the text is not known.
    """
    fields = [row.columns for row in rows]
    names = [name for name in string_fields(fields) if name[:1] != "_" and name not in NOT_TEXTS]
    media = [name for name in MEDIA if any(name in row for row in fields)]
    if media and "text" not in names and not dialect.text_column:
        raise ValueError(f"field `{media[0]}`: labels of texts, or of their spans, are read here")
    columns = text_columns([name for name in names if name not in MEDIA], dialect)
    label = dialect.label_column or "label"
    refused = {(_key(row), str(row.get(label))) for row in fields if row.get("answer") == "reject"}
    has_answers = any("answer" in row for row in fields)
    if wants != "text" and any(row.get("relations") for row in fields):
        notes.append("its relations left aside")
    for row in rows:
        yield _answered(row, columns, label, refused, has_answers)


def _key(row: Mapping[str, Any]) -> Hashable:
    number = row.get("_input_hash")
    return number if isinstance(number, int) else None


def _answered(
    row: Row,
    columns: tuple[str, str | None],
    label: str,
    refused: set[tuple[Hashable, Any]],
    has_answers: bool,
) -> AnnotatedRow:
    fields, key = row.columns, _key(row.columns)
    texts = Row(row.line, text_of(fields, columns) | id_of(fields))
    answer = fields.get("answer") if has_answers else "accept"
    if answer in ("reject", "ignore"):
        return AnnotatedRow(texts, (), "rejected", f"its answer is {answer}", key)
    if answer != "accept":
        return AnnotatedRow(texts, key=key)
    if fields.get("_is_binary") and fields.get("spans"):
        return AnnotatedRow(
            texts,
            (),
            "ambiguous",
            "a yes or no about one span; annotate all spans of a text, as ner.manual does",
            key,
        )
    if key is not None and (key, str(fields.get(label))) in refused and label in fields:
        return AnnotatedRow(texts, (), "ambiguous", "its label was both accepted and rejected", key)
    try:
        given = _answer(fields, label)
    except ValueError as error:
        return AnnotatedRow(texts, (), "ambiguous", str(error), key)
    return AnnotatedRow(texts, () if given is None else (given,), key=key)


def _answer(fields: Mapping[str, Any], label: str) -> Annotation | None:
    """What an accepted row says; None: nothing.

    Raises:
        ValueError: No option was chosen, or a span is not one.
    """
    labels: tuple[str, ...] = ()
    if isinstance(fields.get("accept"), list):
        labels = labels_of(fields["accept"])
        if not labels:
            raise ValueError("accepted without an option chosen")
    elif fields.get(label) is not None:
        labels = labels_of([fields[label]])
    spans = _spans(fields.get("spans"), bool(labels))
    return None if spans is None and not labels else Annotation(labels, spans)


def _spans(values: Any, has_label: bool) -> tuple[Span, ...] | None:
    """A row's spans; beside a label of the whole text they may be highlights, without a type."""
    if not isinstance(values, list):
        return None
    found = [object_in(one) for one in values]
    if has_label and not all(isinstance(one.get("label"), str) for one in found):
        return None
    return tuple(span_of(one.get("start"), one.get("end"), one.get("label")) for one in found)


def sniff(text: str) -> float:
    """How surely a file that begins so is Prodigy's."""
    first = first_object(text)
    if first.keys() & {"_input_hash", "_task_hash"}:
        return 0.95
    if first.get("answer") in ANSWERS:
        return 0.9
    spans = first.get("spans")
    are_spans = isinstance(spans, list) and all(isinstance(one, dict) for one in spans)
    return 0.7 if "text" in first and are_spans else 0.0
