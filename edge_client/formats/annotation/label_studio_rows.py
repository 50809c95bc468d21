"""Label Studio exports with one row per annotation: JSON_MIN, CSV and TSV.

Imported fields and answers stand side by side, and nothing marks which is which.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from smidgen.edge_client.formats.annotation.answers import AnnotatedRow, first_object, objects_in
from smidgen.edge_client.formats.annotation.label_studio import (
    StudioTask,
    Values,
    answered,
)
from smidgen.edge_client.formats.source import Dialect, Row

OF_ANNOTATION = frozenset(
    ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement")
)
MARKS = {"annotation_id", "annotator", "lead_time"}
IMPORTED = "_data_"  # before the name of an imported column of a CSV that a control is called as


def rows_as_tasks(rows: Iterable[Row], controls: Collection[str]) -> list[StudioTask]:
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
        found.append(StudioTask(line, fields, (values,) if is_answered else (), key=key))
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
        if isinstance(found, dict) or len(objects_in(found)) == len(found):
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
    rows: Sequence[Mapping[str, Any]], dialect: Dialect, labelled: bool
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


def _is_json(value: Any) -> bool:
    return isinstance(cell(value) if isinstance(value, str) else value, dict | list)


def in_json_min(rows: Sequence[Row], dialect: Dialect, labelled: bool) -> Iterator[AnnotatedRow]:
    """What a JSON_MIN export says; see `answered`.

    Raises:
        ValueError: It has answers, and none that is sure to be one.
    """
    fields = [row.columns for row in rows]
    if any(_is_reordered(list(row)) for row in fields):
        return in_table(rows, dialect, labelled)
    controls = controls_by_order(fields)
    if labelled and not controls and any(row.get("annotation_id") is not None for row in fields):
        raise ValueError(
            "nothing was answered, or its control is called as an imported field: JSON_MIN writes "
            "an answer over the imported value, and that value where there is none; export as JSON"
        )
    return answered(rows_as_tasks(rows, controls), dialect, labelled)


def _is_reordered(names: list[str]) -> bool:
    """Whether somebody put the keys of a row into another order than Label Studio's."""
    return {"id", "annotator"} <= {*names} and names.index("annotator") < names.index("id")


def in_table(rows: Sequence[Row], dialect: Dialect, labelled: bool) -> Iterator[AnnotatedRow]:
    """What a CSV or TSV export says; see `answered`."""
    controls = controls_by_content([row.columns for row in rows], dialect, labelled)
    read = [replace(row, columns=_with_cells(row.columns, controls)) for row in rows]
    return answered(rows_as_tasks(read, controls), dialect, labelled)


def _with_cells(row: Mapping[str, Any], controls: Collection[str]) -> dict[str, Any]:
    are_cells = {name for name in controls if isinstance(row.get(name), str)}
    return {name: cell(one) if name in are_cells else one for name, one in row.items()}


def sniff_json_min(text: str) -> float:
    """How surely a file that begins so is a JSON_MIN export."""
    return 0.95 if first_object(text).keys() >= MARKS else 0.0


def sniff_table(text: str) -> float:
    """How surely a file that begins so is a CSV or TSV export, whatever its name ends in."""
    header = text.lstrip("\ufeff").partition("\n")[0]
    names = {name.strip().strip('"') for name in header.split(delimiter_of(header))}
    return 0.95 if names >= MARKS else 0.0


def delimiter_of(header: str) -> str:
    """What stands between the columns of an export: a comma or, though it is called .csv, a tab."""
    return max(",\t;", key=header.count)
