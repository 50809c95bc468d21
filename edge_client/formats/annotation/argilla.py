"""Argilla exports: records of 2.x (`to_json`, `to_list`, flat or not), and of 1.x.

    {"id": "1", "fields": {"text": "charged twice"}, "status": "completed",
     "responses": {"topic": [{"value": "bill", "user_id": "..."}]}, "suggestions": {...}}
    {"id": "1", "text": "charged twice", "topic.responses": ["bill"],
     "topic.responses.status": ["submitted"], ...}

Only submitted responses count, and suggestions never do. Nested exports (2.8.0) do not tell whether
a response was submitted, discarded or is a draft; a record that is not completed on its server is
left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from smidgen.edge_client.formats.annotation.answers import (
    AnnotatedRow,
    Annotation,
    first_object,
    id_of,
    labels_of,
    list_in,
    object_in,
    objects_in,
    span_of,
    string_fields,
    text_columns,
    text_of,
)
from smidgen.edge_client.formats.json_rows import are_strings
from smidgen.edge_client.formats.source import Dialect, Reason, Row, Wants, named

FLAT = ".responses"  # behind the name of a question
READ = "questions for a label, labels or spans are read here"
LABELS, SPANS, NOTHING = "labels", "spans", "nothing"
FIRST = {"Validated": "submitted", "Discarded": "discarded"}  # what 1.x calls these
OF_RECORD = ("id", "status", "_server_id")
UNKNOWN = (
    "a response of a record that is not completed, which may be a draft or discarded: export it by "
    "to_list(flatten=True), which says so"
)


class Response(NamedTuple):
    """What one person said to one question.

    Attributes:
        question: The question.
        value: A label, a list of labels, a list of spans, or of another type of question.
        status: `submitted`, `discarded`, `draft`; empty: the file does not say.
    """

    question: str
    value: Any
    status: str


class ArgillaRecord(NamedTuple):
    """A record of any version.

    Attributes:
        fields: What was to be annotated.
        responses: In the order of the file.
        is_open: Whether its server has it as not completed.
    """

    fields: Mapping[str, Any]
    responses: Sequence[Response]
    is_open: bool = False


def answered(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    """Each record with its text and what was submitted.

    Raises:
        ValueError: The text or the question is not known, or none of the questions can be read.
    """
    records = [record_of(row.columns) for row in rows]
    columns = text_columns(string_fields(record.fields for record in records), dialect)
    kinds = _kinds(records)
    if wants != "text" and (bare := sum(map(_is_unsaid, rows, records))):
        notes.append(f"{bare} records whose responses have no status, as submitted")
    question = _question(kinds, dialect.label_column) if wants != "text" else ""
    for row, record in zip(rows, records, strict=True):
        texts = Row(row.line, text_of(record.fields, columns) | id_of(row.columns))
        yield _answered(texts, record, question, kinds.get(question) == SPANS)


def record_of(row: Mapping[str, Any]) -> ArgillaRecord:
    """What a row says, whichever version wrote it."""
    if "annotation" in row:
        return _of_first(row)
    if not isinstance(row.get("fields"), dict):
        return _of_flat(row)
    responses, found = row.get("responses"), list[Response]()
    if isinstance(responses, dict):
        for question, given in responses.items():
            for one in objects_in(given):
                found.append(Response(question, one.get("value"), _string(one.get("status"))))
    for one in objects_in(responses):  # of 1.x: all that a person said at once
        for question, given in object_in(one.get("values")).items():
            value = object_in(given).get("value")
            found.append(Response(question, value, _string(one.get("status"))))
    is_open = row.get("_server_id") is not None and row.get("status") == "pending"
    return ArgillaRecord(row["fields"], found, is_open)


def _of_flat(row: Mapping[str, Any]) -> ArgillaRecord:
    questions = [name.removesuffix(FLAT) for name in row if name.endswith(FLAT)]
    found = []
    for question in questions:
        values, statuses = (list_in(row.get(question + end)) for end in (FLAT, f"{FLAT}.status"))
        for number, value in enumerate(values):
            status = _string(statuses[number]) if number < len(statuses) else ""
            found.append(Response(question, value, status))
    for question, given in row.items():  # of 1.x: a column of objects for each question
        found.extend(
            Response(question, one["value"], _string(one["status"]))
            for one in objects_in(given)
            if {"value", "status"} <= one.keys()
        )
    # Other columns are fields, metadata or suggestions; those with a dot belong to a question.
    fields = {name: one for name, one in row.items() if "." not in name and name not in OF_RECORD}
    return ArgillaRecord(fields, found)


def _of_first(row: Mapping[str, Any]) -> ArgillaRecord:
    """A record of 1.x for one task, whose annotation counts once it is validated."""
    text = row.get("text")
    fields = {"text": text} if isinstance(text, str) else object_in(row.get("inputs"))
    status = FIRST.get(_string(row.get("status")), "draft")
    value = row["annotation"]
    if isinstance(value, list) and value and not isinstance(value[0], str):
        value = [_first_span(one) for one in value]
    return ArgillaRecord(fields, [] if value is None else [Response("annotation", value, status)])


def _first_span(value: Any) -> Any:
    """A span as 2.x has it; in 1.x it is a list that begins with its type."""
    if isinstance(value, list) and len(value) >= 3:
        return {"label": value[0], "start": value[1], "end": value[2]}
    return value


def _kinds(records: Sequence[ArgillaRecord]) -> dict[str, str]:
    """What each question is answered by, in words."""
    kinds: dict[str, str] = {}
    for response in (one for record in records for one in record.responses):
        if kinds.get(response.question) in (None, NOTHING):
            kinds[response.question] = _kind(response.value)
    return kinds


def _kind(value: Any) -> str:
    if isinstance(value, str) or (value and objects_in(value) == [] and are_strings(value)):
        return LABELS
    if value in (None, []):
        return NOTHING
    spans = objects_in(value)
    if spans and all({"start", "end", "label"} <= one.keys() for one in spans):
        return SPANS
    return "numbers" if isinstance(value, int | float) else "lists"


def _question(kinds: Mapping[str, str], wanted: str) -> str:
    """The question whose answers are read; empty if none was answered.

    Raises:
        ValueError: It is not known, or none can be read.
    """
    if wanted and kinds and wanted not in kinds:
        raise ValueError(f"no question `{wanted}`; found {named(list(kinds))}")
    asked = {wanted: kinds[wanted]} if wanted in kinds else kinds
    readable = [name for name, kind in asked.items() if kind in (LABELS, SPANS)]
    if len(readable) > 1:
        raise ValueError(f"which question, of {named(readable)}? say it by --label-column")
    if not readable and any(kind != NOTHING for kind in asked.values()):
        name, kind = next(item for item in asked.items() if item[1] != NOTHING)
        raise ValueError(f"question `{named([name])}` is answered by {kind}; {READ}")
    return readable[0] if readable else ""


def _is_unsaid(row: Row, record: ArgillaRecord) -> bool:
    """Whether neither its responses nor its server say that they were submitted."""
    are_bare = any(not one.status for one in record.responses)
    return are_bare and not record.is_open and row.columns.get("status") != "completed"


def _answered(texts: Row, record: ArgillaRecord, question: str, are_spans: bool) -> AnnotatedRow:
    responses = [one for one in record.responses if one.question == question]
    submitted = [one for one in responses if one.status == "submitted"]
    unsaid = [one for one in responses if not one.status]
    reason: Reason = "unanswered"
    said = "nobody has submitted a response"
    if unsaid and record.is_open:
        said = UNKNOWN
    elif any(one.status == "discarded" for one in responses):
        reason, said = "rejected", "its response was discarded"
    counted = submitted if record.is_open else [*submitted, *unsaid]
    try:
        given = (_answer(one.value, are_spans) for one in counted)
        return AnnotatedRow(texts, tuple(one for one in given if one is not None), reason, said)
    except ValueError as error:
        return AnnotatedRow(texts, (), "ambiguous", str(error))


def _answer(value: Any, are_spans: bool) -> Annotation | None:
    """What a response says; None: nothing.

    Raises:
        ValueError: A span is not one, or a label is not text.
    """
    values = value if isinstance(value, list) else [value]
    if not are_spans:
        return Annotation(labels_of(values)) if values else None
    spans = map(object_in, values)
    return Annotation(
        (), tuple(span_of(one.get("start"), one.get("end"), one.get("label")) for one in spans)
    )


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def sniff(text: str) -> float:
    """How surely a file that begins so is Argilla's."""
    first = first_object(text)
    if "fields" in first and first.keys() & {"responses", "suggestions"}:
        return 0.95
    if any(name.endswith((f"{FLAT}.status", f"{FLAT}.users")) for name in first):
        return 0.95
    return 0.9 if {"annotation", "status", "inputs"} <= first.keys() else 0.0
