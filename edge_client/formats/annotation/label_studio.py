"""Label Studio exports (JSON, JSON_MIN, CSV, TSV), and pre-annotations for correction there.

JSON holds a task with all its annotations; JSON_MIN and CSV hold a row per annotation, without
cancelled ones. None says which field is the text, and a CSV does not tell imported columns from
answers: what cannot be known is asked of the user.

Offsets count code points; in files from before Label Studio 1.4 they may count UTF-16 units, which
the text stored with each span reveals.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from smidgen.edge_client.formats.annotation.answers import (
    AnnotatedRow,
    Annotation,
    Proposal,
    Span,
    first_object,
    from_utf16,
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
from smidgen.edge_client.formats.source import Dialect, Row, named

Values: TypeAlias = list[Mapping[str, Any]]  # of one control in one annotation

READ = "choices of a text and labels of its spans are read here"
ADDRESS = re.compile(
    r"(?:https?|s3|gs|azure-blob)://\S+|data:\S+|/data/\S+"
    r"|\S+\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|mp3|wav|ogg|flac|m4a|mp4|webm|mov|pdf)(?:\?\S*)?",
    re.IGNORECASE,
)
GEOMETRY = frozenset(
    ("start", "end", "x", "y", "width", "height", "rotation", "original_width", "original_height")
)
GAP = re.compile(r"(?:\s|\\n)+")  # Label Studio writes a line end within a span's text in two ways


@dataclass(frozen=True, slots=True)
class StudioTask:
    """A task of a project, or the row of one annotation of it.

    Attributes:
        line: Where it stands in its file.
        fields: What was imported.
        annotations: What each annotation holds, by control; without those that were cancelled.
        is_cancelled: Whether there are such.
        key: See `AnnotatedRow`.
        about: Names of what its answers are about; often called as the fields.
    """

    line: int
    fields: Mapping[str, Any]
    annotations: tuple[Mapping[str, Values], ...]
    is_cancelled: bool = False
    key: tuple[str, ...] | None = None
    about: tuple[str, ...] = ()


def tasks_of(rows: Iterable[Row]) -> list[StudioTask]:
    """The tasks of a JSON export."""
    found = []
    for row in rows:
        record = row.columns
        every = objects_in(record.get("annotations", record.get("completions")))
        counted = [one for one in every if not (one.get("was_cancelled") or one.get("skipped"))]
        results = [objects_in(one.get("result")) for one in counted]
        names = (one.get("to_name") for result in results for one in result)
        about = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
        found.append(
            StudioTask(
                row.line,
                {"id": record.get("id"), **object_in(record.get("data"))},
                tuple(map(_by_control, results)),
                len(counted) < len(every),
                about=about,
            )
        )
    return found


def _by_control(results: Iterable[Mapping[str, Any]]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for one in results:
        name, value = one.get("from_name"), one.get("value")
        if isinstance(name, str) and isinstance(value, dict):  # a relation has neither
            found.setdefault(name, []).append(value)
    return found


def controls_of(kinds: Mapping[str, str], wanted: str) -> dict[str, str]:
    """The control to read of each kind, `choices` and `labels` (those of spans), if there is one.

    Args:
        kinds: What each control of the file holds, see `kind_of`.
        wanted: The one that the user names; empty: there is one of a kind.

    Raises:
        ValueError: None can be read, or it could be several; says what to do.
    """
    if kinds and wanted and wanted not in kinds:
        raise ValueError(f"no control `{wanted}`; found {named(list(kinds))}")
    found: dict[str, str] = {}
    for kind in ("choices", "labels"):
        names = [name for name, one in kinds.items() if one == kind]
        names = [wanted] if wanted in names else names
        if len(names) > 1:
            raise ValueError(f"which is the label, of {named(names)}? say it by --label-column")
        if names:
            found[kind] = names[0]
    if kinds and not found:
        raise ValueError(f"{_kinds_said(kinds)}; {READ}")
    return found


def _kinds_said(kinds: Mapping[str, str]) -> str:
    """The first control and its type; the others are of no use either."""
    name, kind = next(iter(kinds.items()))
    return f"`{named([name])}` is of type {named([kind])}"


def kinds_of(tasks: Iterable[StudioTask]) -> dict[str, str]:
    """What each control of a file holds, by its first answer."""
    found: dict[str, str] = {}
    for annotation in (one for task in tasks for one in task.annotations):
        for name, values in annotation.items():
            if name not in found and values:
                found[name] = kind_of(values[0])
    return found


def kind_of(value: Mapping[str, Any]) -> str:
    """`choices` of a whole text, `labels` of its spans, or the type of control that it is of."""
    is_of_text = isinstance(value.get("start"), int) and isinstance(value.get("end"), int)
    if "choices" in value and "start" not in value:
        return "choices"
    if "labels" in value and is_of_text:
        return "labels"
    names = [name for name in value if name.endswith("labels")]
    others = [name for name in value if name not in GEOMETRY]
    return (names or others or ["unknown"])[0]


def answered(
    tasks: Sequence[StudioTask], dialect: Dialect, labelled: bool
) -> Iterator[AnnotatedRow]:
    """Each task with its text and all that was answered.

    Raises:
        ValueError: The text or the control is not known, or the project is of another type.
    """
    kinds = kinds_of(tasks)
    controls = controls_of(kinds, dialect.label_column) if labelled else {}
    about = (name for task in tasks for name in task.about)
    names = [name for name in string_fields(task.fields for task in tasks) if name != "id"]
    columns = text_columns(names, dialect, about)
    texts = [task.fields.get(columns[0]) for task in tasks]
    known = [isinstance(one, str) and ADDRESS.fullmatch(one.strip()) for one in texts if one]
    if known and all(known) and not dialect.text_column:
        more = f" ({_kinds_said(kinds)})" if kinds else ""
        raise ValueError(f"field `{columns[0]}` holds addresses of files{more}; {READ}")
    for task in tasks:
        yield _answered(task, columns, controls)


def _answered(
    task: StudioTask, columns: tuple[str, str | None], controls: Mapping[str, str]
) -> AnnotatedRow:
    found = text_of(task.fields, columns)
    row = Row(task.line, found | id_of(task.fields))
    try:
        answers = [_answer(one, controls, str(found["text"])) for one in task.annotations]
    except ValueError as error:
        return AnnotatedRow(row, (), "ambiguous", str(error), task.key)
    given = tuple(one for one in answers if one is not None)
    if given or not task.is_cancelled:
        return AnnotatedRow(row, given, key=task.key)
    return AnnotatedRow(row, (), "rejected", "its annotation was cancelled", task.key)


def _answer(
    annotation: Mapping[str, Values], controls: Mapping[str, str], text: str
) -> Annotation | None:
    """What one annotation says; None: nothing that is read.

    Raises:
        ValueError: Its spans do not fit the text.
    """
    chosen = annotation.get(controls.get("choices", ""), [])
    labels = labels_of(one for value in chosen for one in list_in(value.get("choices")))
    if "labels" not in controls:
        return Annotation(labels) if labels else None
    return Annotation(labels, _spans(annotation.get(controls["labels"], []), text))


def _spans(values: Values, text: str) -> tuple[Span, ...]:
    """The spans of one annotation, each once for each of its labels.

    Raises:
        ValueError: One has no label, or they are not at their places however these are counted.
    """
    spans = [
        (span_of(value.get("start"), value.get("end"), label), value.get("text"))
        for value in values
        for label in list_in(value.get("labels")) or [None]
    ]
    if all(_is_at(text, span, kept) for span, kept in spans):
        return tuple(span for span, _ in spans)
    found = [(_from_utf16(text, span), kept) for span, kept in spans]
    if all(_is_at(text, span, kept) for span, kept in found):
        return tuple(span for span, _ in found)
    raise ValueError("a span that is not where its own text is")


def _from_utf16(text: str, span: Span) -> Span:
    start, end = (from_utf16(text, place) for place in span[:2])
    return (-1, -1, span[2]) if start is None or end is None else (start, end, span[2])


def _is_at(text: str, span: Span, kept: Any) -> bool:
    """Whether a span holds the text that is kept with it; where none is, that is so."""
    if not isinstance(kept, str):
        return span[0] >= 0
    return GAP.sub(" ", text[span[0] : span[1]]) == GAP.sub(" ", kept)


def in_json(rows: Sequence[Row], dialect: Dialect, labelled: bool) -> Iterator[AnnotatedRow]:
    """What a JSON export says; see `answered`."""
    return answered(tasks_of(rows), dialect, labelled)


@contextmanager
def writing(file: TextIO, version: str) -> Iterator[Callable[[Proposal], None]]:
    """Writes tasks with predictions, which annotators see and correct; call what is given for each.

    The project needs `<Choices name="label" toName="text">`, or `<Labels>` of the same names, over
    `<Text name="text" value="$text">`.

    Args:
        file: The file, at its beginning.
        version: What Label Studio calls the model.
    """
    file.write("[")
    before = "\n"

    def write(proposal: Proposal) -> None:
        nonlocal before
        file.write(before + json.dumps(_proposed(proposal, version), ensure_ascii=False))
        before = ",\n"

    yield write
    file.write("\n]\n")


def _proposed(proposal: Proposal, version: str) -> dict[str, Any]:
    names = {"from_name": "label", "to_name": "text"}
    if proposal.spans is None:
        result = [{**names, "type": "choices", "value": {"choices": [proposal.label]}}]
    else:
        result = [
            {
                **names,
                "id": f"span-{number}",
                "type": "labels",
                "value": {
                    "start": start,
                    "end": end,
                    "text": proposal.text[start:end],
                    "labels": [label],
                },
            }
            for number, (start, end, label) in enumerate(proposal.spans, start=1)
        ]
    score = {} if proposal.score is None else {"score": proposal.score}
    # What tells a file of ours stands first, before texts of any length.
    return {
        "predictions": [{"model_version": version, **score, "result": result}],
        "data": proposal.data(),
    }


def sniff(text: str) -> float:
    """How surely a file that begins so is a JSON export, or a file of tasks to import."""
    keys = first_object(text).keys()
    are_tasks = keys & {"annotations", "completions", "predictions"}
    return 0.95 if are_tasks and keys & {"data", "from_name", "was_cancelled"} else 0.0
