import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation import label_studio_rows
from smidgen.edge_client.formats.annotation.answers import AnnotatedRow
from smidgen.edge_client.formats.annotation.label_studio_rows import cell
from smidgen.edge_client.formats.source import Dialect, Row, Wants
from tests.edge_client.formats.annotation.annotated import Read, Spanned, read, spanned

LABELS = ("delivery", "bill, or not", 'the "best"', "[1, 2]", "{odd")
SPANS = '[{"start":0,"end":3,"text":"Ann","labels":["PER"]}]'


def row(number: int, text: str, is_answered: bool = True, **answers: Any) -> dict[str, Any]:
    """A row as JSON_MIN has it, its keys in their order."""
    last = {"annotator": 1, "annotation_id": number, "created_at": "now", "lead_time": 1.5}
    return {"text": text, "id": number, **answers, **(last if is_answered else dict.fromkeys(last))}


def line(number: int, text: str, is_answered: bool = True, **cells: str) -> dict[str, str]:
    """A row as CSV has it."""
    last = {"annotator": "1", "annotation_id": str(number), "lead_time": "1.5"}
    last = last if is_answered else dict.fromkeys(last, "")
    return dict(sorted((last | {"id": str(number), "text": text} | cells).items()))


def reading_min(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    return label_studio_rows.in_json_min(rows, dialect, wants != "text")


def reading_table(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    return label_studio_rows.in_table(rows, dialect, wants != "text")


def in_min(*rows: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(reading_min, rows, Dialect(**dialect), labelled)


def in_table(*rows: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(reading_table, rows, Dialect(**dialect), labelled)


@given(st.lists(st.lists(st.sampled_from(LABELS), min_size=1, max_size=3), min_size=1, max_size=4))
def test_rows_of_one_task_are_one_text_in_both_forms(answers: list[list[str]]) -> None:
    every = [(number, one) for number, chosen in enumerate(answers) for one in chosen]
    expected = {f"text {n}": one[0] for n, one in enumerate(answers) if len(set(one)) == 1}
    reasons = [
        reason
        for one in answers
        for reason in (
            ["duplicate"] * (len(one) - 1) if len(set(one)) == 1 else ["ambiguous"] * len(one)
        )
    ]
    small = in_min(*(row(number, f"text {number}", topic=one) for number, one in every))
    table = in_table(*(line(number, f"text {number}", topic=one) for number, one in every))
    assert (small.labels, small.left_out) == (table.labels, table.left_out) == (expected, reasons)


def test_one_choice_is_a_bare_word_and_two_are_an_object() -> None:
    two = {"choices": ["bill", "delivery"]}
    small = in_min(row(1, "a", topic="bill"), row(2, "b", topic=two))
    table = in_table(line(1, "a", topic="bill"), line(2, "b", topic=json.dumps(two)))
    assert small.labels == table.labels == {"a": "bill"}
    assert small.left_out == table.left_out == ["ambiguous"]


def test_an_empty_answer_has_no_key_in_json_min_and_an_empty_cell_in_a_table() -> None:
    small = in_min(row(1, "a", topic="bill"), row(2, "b"), row(3, "c", False))
    cells = line(1, "a", topic="bill"), line(2, "b", topic=""), line(3, "c", False, topic="")
    table = in_table(*cells)
    assert small.labels == table.labels == {"a": "bill"}
    assert small.left_out == table.left_out == ["unanswered", "unanswered"]
    assert in_table(*cells, labelled=False).labels == dict.fromkeys("abc")


@given(st.lists(spanned(), max_size=3))
def test_spans_stand_in_lists_of_objects(texts: list[Spanned]) -> None:
    def value(one: Spanned) -> list[dict[str, Any]]:
        return [
            {"start": start, "end": end, "text": one.text[start:end], "labels": [label]}
            for start, end, label in one.spans
        ]

    unlike = [Spanned("Ann", ((0, 3, "PER"),), (), ()), *texts]
    small = [row(n, one.text, label=value(one)) for n, one in enumerate(unlike)]
    cells = [json.dumps(value(one)) if one.spans else "" for one in unlike]
    table = [
        line(n, one.text, label=said)
        for n, (one, said) in enumerate(zip(unlike, cells, strict=True))
    ]
    expected = {one.text: one.spans for one in unlike}
    assert in_min(*small).spans == in_table(*table).spans == expected


def test_an_annotated_text_without_a_span_differs_from_one_that_nobody_annotated() -> None:
    cells = line(1, "Ann", label=SPANS), line(2, "b", label=""), line(3, "c", False, label="")
    found = in_table(*cells)
    assert found.spans == {"Ann": ((0, 3, "PER"),), "b": ()} and found.left_out == ["unanswered"]


def test_an_id_of_the_users_own_does_not_make_two_tasks_one() -> None:
    rows = [line(1, text, topic=label) | {"id": "n"} for text, label in (("a", "x"), ("b", "y"))]
    assert in_table(*rows).labels == {"a": "x", "b": "y"}


def test_an_imported_value_is_never_an_answer() -> None:
    rows = [row(1, "a") | {"label": "old"}, row(2, "b", False) | {"label": "old"}]
    imported = [{"text": one["text"], "label": "old", **one} for one in rows]
    with pytest.raises(ValueError, match=r"called as an imported field.*export as JSON"):
        in_min(*imported)
    cells = line(1, "a", label="new", _data_label="old"), line(2, "b", label="", _data_label="old")
    found = in_table(*cells)
    assert found.labels == {"a": "new"} and found.left_out == ["unanswered"]


def test_in_a_table_the_user_says_which_of_several_columns_was_answered() -> None:
    cells = line(1, "a", city="Rome", topic="bill"), line(2, "b", city="Oslo", topic="delivery")
    with pytest.raises(ValueError, match=r"of city, topic. say it by --label-column"):
        in_table(*cells)
    assert in_table(*cells, label_column="topic").labels == {"a": "bill", "b": "delivery"}
    an_open_row = line(3, "c", False, city="Bern", topic="")
    assert in_table(*cells, an_open_row).labels == {"a": "bill", "b": "delivery"}


def test_json_min_says_by_its_order_what_was_imported() -> None:
    rows = [{"city": "Rome", **row(1, "a", topic="bill")}]
    assert in_min(*rows).labels == {"a": "bill"}
    in_another_order = [dict(sorted(one.items())) for one in rows]
    with pytest.raises(ValueError, match="say it by --label-column"):
        in_min(*in_another_order)
    assert in_min(*in_another_order, label_column="topic").labels == {"a": "bill"}


@pytest.mark.parametrize("text", ["[1, 2]", "{x", '{"a"', "[", "a{}", "5", "null", "true", ""])
def test_what_only_looks_like_json_stays_a_word(text: str) -> None:
    assert cell(text) == text
