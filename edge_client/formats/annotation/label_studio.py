"""Label Studio's exports (JSON, JSON_MIN, CSV, TSV), and pre-annotations to correct there.

JSON holds a task with all its annotations; JSON_MIN and CSV hold a row per annotation, without
those that were cancelled. None of them says which field is the text, and a CSV does not say which
column was imported and which answered: what cannot be known is asked for.

Offsets count code points; in files from before Label Studio 1.4 they may count UTF-16 units, which
the text that is kept with each span tells.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

from edge_client.formats.annotation.answers import (
    Answer,
    Answered,
    Proposal,
    id_of,
    labels_of,
    named,
    span_of,
    string_fields,
    text_columns,
    text_of,
)
from edge_client.formats.annotation.spans import Span, from_utf16
from edge_client.formats.dialect import Dialect
from edge_client.formats.reader import Row

Values: TypeAlias = list[Mapping[str, Any]]  # of one control in one annotation

READ = "choices of a text and labels of its spans are read here"
ADDRESS = re.compile(
    r"(?:https?|s3|gs|azure-blob)://\S+|data:\S+|/data/\S+"
    r"|\S+\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|mp3|wav|ogg|flac|m4a|mp4|webm|mov|pdf)(?:\?\S*)?",
    re.IGNORECASE,
)
OF_ANNOTATION = frozenset(
    ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement")
)
IMPORTED = "_data_"  # before the name of an imported column of a CSV that a control is called as
GEOMETRY = frozenset(
    ("start", "end", "x", "y", "width", "height", "rotation", "original_width", "original_height")
)
GAP = re.compile(r"(?:\s|\\n)+")  # Label Studio writes a line end within a span's text in two ways


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a project, or the row of one annotation of it.

    Attributes:
        line: Where it stands in its file.
        fields: What was imported.
        annotations: What each annotation holds, by control; without those that were cancelled.
        is_cancelled: Whether there are such.
        key: See `Answered`.
        objects: Names of what its answers are about; often called as the fields.
    """

    line: int
    fields: Mapping[str, Any]
    annotations: tuple[Mapping[str, Values], ...]
    is_cancelled: bool = False
    key: tuple[str, ...] | None = None
    objects: tuple[str, ...] = ()


def tasks_of(rows: Iterable[Row]) -> list[Task]:
    """The tasks of a JSON export."""
    found = []
    for row in rows:
        record = row.columns
        every = _objects(record.get("annotations", record.get("completions")))
        counted = [one for one in every if not (one.get("was_cancelled") or one.get("skipped"))]
        results = [_objects(one.get("result")) for one in counted]
        names = (one.get("to_name") for result in results for one in result)
        objects = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
        data = record.get("data")
        found.append(
            Task(
                row.line,
                {"id": record.get("id"), **(data if isinstance(data, dict) else {})},
                tuple(map(_by_control, results)),
                len(counted) < len(every),
                objects=objects,
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


def _list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else []


def _objects(values: Any) -> Values:
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []


def rows_as_tasks(rows: Iterable[Row], controls: Collection[str]) -> list[Task]:
    """The annotations of a JSON_MIN export, or of a CSV one; those of one task have one key.

    Its id alone will not do: in a CSV an imported `id` stands in the place of the task's.
    """
    found = []
    for line, row in ((row.line, row.columns) for row in rows):
        kept = {name: one for name, one in row.items() if name not in controls}
        fields = {_imported_as(name, controls): one for name, one in kept.items()}
        fields = {name: one for name, one in fields.items() if name not in OF_ANNOTATION - {"id"}}
        values = {name: _values(row[name]) for name in controls if row.get(name) not in (None, "")}
        key = (str(row.get("id")), *(one for one in fields.values() if isinstance(one, str)))
        is_answered = row.get("annotation_id") not in (None, "")
        found.append(Task(line, fields, (values,) if is_answered else (), key=key))
    return found


def _imported_as(name: str, controls: Collection[str]) -> str:
    plain = name.removeprefix(IMPORTED)
    return plain if plain in controls else name


def _values(value: Any) -> Values:
    """What a control holds: JSON_MIN and CSV write one choice as its bare name."""
    values = value if isinstance(value, list) else [value]
    return [one if isinstance(one, dict) else {"choices": [one]} for one in values]


def cell(text: str) -> Any:
    """What a cell of a CSV export says: an object, a list of such, or a bare word."""
    if text.startswith(("{", "[{")):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(found, dict) or len(_objects(found)) == len(found):
            return found
    return text


def controls_by_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The controls of a JSON_MIN export: what stands between a task's id and the annotator.

    A control that is called as an imported field takes its place before the id: nothing tells an
    answer from an imported value then, so it is none here.
    """
    found: dict[str, None] = {}
    for row in rows:
        names = list(row)
        if "id" in names and "annotator" in names:
            found |= dict.fromkeys(names[names.index("id") + 1 : names.index("annotator")])
    return [name for name in found if name not in OF_ANNOTATION]


def controls_by_content(
    rows: Sequence[Mapping[str, str]], dialect: Dialect, labelled: bool
) -> list[str]:
    """The columns of a CSV export that may be controls: not a text, and not imported for sure.

    A column that is filled where nobody has answered was imported. Beside labels of spans, or a
    column that was renamed for a control, no other column is taken for choices unasked.
    """
    names = list(rows[0]) if rows else []
    doubled = [name.removeprefix(IMPORTED) for name in names if name.startswith(IMPORTED)]
    doubled = [name for name in doubled if name in names]
    open_rows = [row for row in rows if not row.get("annotation_id")]
    imported = {name for row in open_rows for name, one in row.items() if one}
    imported |= {*OF_ANNOTATION, *(IMPORTED + name for name in doubled)}
    maybe = [name for name in names if name not in imported]
    if dialect.label_column in maybe:
        return [dialect.label_column]
    sure = doubled or [name for name in maybe if any(_is_json(row.get(name)) for row in rows)]
    if sure or not labelled:
        return sure
    texts = dialect.columns(names)
    return [name for name in maybe if name not in (texts.text, texts.text_b)]


def _is_json(text: str | None) -> bool:
    return text is not None and not isinstance(cell(text), str)


@dataclass(frozen=True)
class Controls:
    """Which controls of a labelling interface are read.

    Attributes:
        label: The one whose choices are labels; None: there is none.
        spans: The one whose labels are those of spans; None likewise.
    """

    label: str | None = None
    spans: str | None = None


def controls_of(kinds: Mapping[str, str], wanted: str) -> Controls:
    """The controls to read.

    Args:
        kinds: What each control of the file holds, see `kind_of`.
        wanted: The one that the user names; empty: there is one of a kind.

    Raises:
        ValueError: None can be read, or it could be several; says what to do.
    """
    if kinds and wanted and wanted not in kinds:
        raise ValueError(f"no control `{wanted}`; found {named(list(kinds))}")
    found: dict[str, str | None] = {}
    for kind in ("choices", "labels"):
        names = [name for name, one in kinds.items() if one == kind]
        names = [wanted] if wanted in names else names
        if len(names) > 1:
            raise ValueError(f"which is the label, of {named(names)}? say it by --label-column")
        found[kind] = names[0] if names else None
    if kinds and not any(found.values()):
        raise ValueError(f"{_kinds_said(kinds)}; {READ}")
    return Controls(found["choices"], found["labels"])


def _kinds_said(kinds: Mapping[str, str]) -> str:
    """The first control and its type; the others are of no use either."""
    name, kind = next(iter(kinds.items()))
    return f"`{named([name])}` is of type {named([kind])}"


def kinds_of(tasks: Iterable[Task]) -> dict[str, str]:
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


def answered(tasks: Sequence[Task], dialect: Dialect, labelled: bool) -> Iterator[Answered]:
    """Each task with its text and all that was answered.

    Raises:
        ValueError: The text or the control is not known, or the project is of another type.
    """
    kinds = kinds_of(tasks)
    controls = controls_of(kinds, dialect.label_column) if labelled else Controls()
    objects = (name for task in tasks for name in task.objects)
    names = [name for name in string_fields(task.fields for task in tasks) if name != "id"]
    columns = text_columns(names, dialect, objects)
    texts = [task.fields.get(columns[0]) for task in tasks]
    if not dialect.text_column and all(_is_address(text) for text in texts if text):
        more = f" ({_kinds_said(kinds)})" if kinds else ""
        raise ValueError(f"field `{columns[0]}` holds addresses of files{more}; {READ}")
    for task in tasks:
        yield _answered(task, columns, controls)


def _is_address(text: Any) -> bool:
    return isinstance(text, str) and bool(ADDRESS.fullmatch(text.strip()))


def _answered(task: Task, columns: tuple[str, str | None], controls: Controls) -> Answered:
    found = text_of(task.fields, columns)
    row = Row(task.line, found | id_of(task.fields))
    try:
        answers = [_answer(one, controls, str(found["text"])) for one in task.annotations]
    except ValueError as error:
        return Answered(row, (), "ambiguous", str(error), task.key)
    given = tuple(one for one in answers if one is not None)
    if given or not task.is_cancelled:
        return Answered(row, given, key=task.key)
    return Answered(row, (), "rejected", "its annotation was cancelled", task.key)


def _answer(annotation: Mapping[str, Values], controls: Controls, text: str) -> Answer | None:
    """What one annotation says; None: nothing that is read.

    Raises:
        ValueError: Its spans do not fit the text.
    """
    chosen = annotation.get(controls.label or "", [])
    labels = labels_of(one for value in chosen for one in _list(value.get("choices")))
    if controls.spans is None:
        return Answer(labels) if labels else None
    values = annotation.get(controls.spans, [])
    return Answer(labels, tuple(span for value in values for span in _spans(value, text)))


def _spans(value: Mapping[str, Any], text: str) -> Iterator[Span]:
    """A span once for each of its labels.

    Raises:
        ValueError: It is not at its place in the text, or has no label.
    """
    start, end, kept = value.get("start"), value.get("end"), value.get("text")
    for label in _list(value.get("labels")) or [None]:
        span = span_of(start, end, label)
        if isinstance(kept, str) and not _is_at(text, span[0], span[1], kept):
            first, last = from_utf16(text, span[0]), from_utf16(text, span[1])
            if first is None or last is None or not _is_at(text, first, last, kept):
                raise ValueError(f"its span {start} to {end} is not where its own text is")
            span = (first, last, span[2])
        yield span


def _is_at(text: str, start: int, end: int, kept: str) -> bool:
    return GAP.sub(" ", text[start:end]).strip() == GAP.sub(" ", kept).strip()


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
