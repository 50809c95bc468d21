import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation import label_studio
from smidgen.edge_client.formats.annotation.answers import AnnotatedRow, Proposal
from smidgen.edge_client.formats.source import Dialect, Row, Wants
from tests.edge_client.formats.annotation.annotated import Read, Spanned, read, spanned

LABELS = ("delivery", "bill", "bill, or not", 'the "best"')


def choice(*labels: str, control: str = "topic") -> dict[str, Any]:
    value = {"choices": list(labels)}
    return {"from_name": control, "to_name": "text", "type": "choices", "value": value}


def span(text: str, start: int, end: int, *labels: str) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text[start:end], "labels": list(labels)}
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


def task(text: str, *annotations: Sequence[Mapping[str, Any]] | None, **fields: Any) -> Any:
    """A task as JSON has it; None is an annotation that was cancelled."""
    every = [{"result": one or [], "was_cancelled": one is None} for one in annotations]
    return {"id": 7, "annotations": every, "predictions": [3], "data": {"text": text, **fields}}


def reading(
    rows: Sequence[Row], dialect: Dialect, wants: Wants, notes: list[str]
) -> Iterator[AnnotatedRow]:
    return label_studio.in_json(rows, dialect, wants != "text")


def in_json(*tasks: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(reading, tasks, Dialect(**dialect), labelled)


@given(st.lists(st.lists(st.sampled_from(LABELS), max_size=3), max_size=5))
def test_a_text_is_read_where_all_who_answered_chose_the_same(answers: list[list[str]]) -> None:
    tasks = [
        task(f"text {number}", *([choice(one)] for one in chosen))
        for number, chosen in enumerate(answers)
    ]
    expected = {f"text {n}": one[0] for n, one in enumerate(answers) if len(set(one)) == 1}
    reasons = ["ambiguous" if one else "unanswered" for one in answers if len(set(one)) != 1]
    found = in_json(*tasks)
    assert (found.labels, found.left_out) == (expected, reasons)


def test_neither_cancelled_nor_empty_annotations_nor_predictions_are_answers() -> None:
    model = {"id": 1, "annotations": [], "data": {"text": "d"}}
    model["predictions"] = [{"result": [choice("bill")]}]
    tasks = [task("a", [choice("bill")], None), task("b", None), task("c", []), model]
    found = in_json(*tasks)
    assert found.labels == {"a": "bill"}
    assert found.left_out == ["rejected", "unanswered", "unanswered"]


def test_where_no_labels_are_wanted_every_task_is_its_text() -> None:
    tasks = [task("a", [choice("bill")]), task("b", None), task("c"), task("d", [choice("x", "y")])]
    assert in_json(*tasks, labelled=False).labels == dict.fromkeys("abcd")


def test_two_choices_of_one_person_are_ambiguous() -> None:
    assert in_json(task("a", [choice("bill", "delivery")])).left_out == ["ambiguous"]


@given(st.lists(spanned(), max_size=3), st.booleans())
def test_spans_are_read_whether_code_points_or_utf_16_units_are_counted(
    texts: list[Spanned], is_old: bool
) -> None:
    def place(text: str, end: int) -> int:
        return len(text[:end].encode("utf-16-le")) // 2 if is_old else end

    tasks = []
    for one in texts:
        results = [span(one.text, start, end, label) for start, end, label in one.spans]
        for result, (start, end, _) in zip(results, one.spans, strict=True):
            result["value"] |= {"start": place(one.text, start), "end": place(one.text, end)}
        tasks.append(task(one.text, results))
    tasks.append(task("Ann", [span("Ann", 0, 3, "PER")]))
    found = in_json(*tasks)
    expected = {one.text: one.spans for one in texts} | {"Ann": ((0, 3, "PER"),)}
    assert found.spans == expected


def test_a_span_that_is_not_where_its_text_is_leaves_its_task_out() -> None:
    wrong = span("Ann left", 0, 3, "PER")
    wrong["value"]["start"] = 1
    assert in_json(task("Ann left", [wrong])).left_out == ["ambiguous"]


def test_an_annotation_without_a_span_says_that_there_is_none() -> None:
    found = in_json(task("Ann", [span("Ann", 0, 3, "PER")]), task("nobody", []), task("open"))
    assert found.spans == {"Ann": ((0, 3, "PER"),), "nobody": ()}
    assert found.left_out == ["unanswered"]


def test_a_pair_of_texts_is_one() -> None:
    data = {"text_a": "a bike", "text_b": "a car"}
    one = {"id": 1, "data": data, "annotations": [{"result": [choice("no")]}]}
    (row,) = in_json(one).rows
    assert isinstance(row, Row)
    assert row.columns == {"text": "a bike", "text_b": "a car", "id": 1, "label": "no"}


def test_the_text_is_the_field_that_the_user_or_the_answers_name_or_the_only_one() -> None:
    answer = {"annotations": [{"result": [choice("bill")]}]}
    only, two = {"data": {"review": "a"}} | answer, {"data": {"review": "a", "body": "b"}} | answer
    assert in_json(only).labels == {"a": "bill"}
    assert in_json(two, text_column="body").labels == {"b": "bill"}
    with pytest.raises(ValueError, match=r"of review, body. say it by --text-column"):
        in_json(two)
    named = {"data": two["data"], "annotations": [{"result": [choice("x") | {"to_name": "body"}]}]}
    assert in_json(named).labels == {"b": "x"}


def test_of_two_controls_the_user_says_which() -> None:
    one = task("a", [choice("bill"), choice("bad", control="tone")])
    assert in_json(one, label_column="tone").labels == {"a": "bad"}
    with pytest.raises(ValueError, match=r"of topic, tone. say it by --label-column"):
        in_json(one)
    with pytest.raises(ValueError, match=r"no control `other`; found topic, tone"):
        in_json(one, label_column="other")


def test_another_type_of_task_is_named_with_its_field() -> None:
    value = {"x": 1, "y": 2, "width": 3, "height": 4, "rectanglelabels": ["cat"]}
    box = {"from_name": "box", "to_name": "img", "type": "rectanglelabels", "value": value}
    one = {"data": {"image": "/data/upload/1/a.jpg"}, "annotations": [{"result": [box]}]}
    for labelled in (True, False):
        with pytest.raises(ValueError, match=r"`box` is of type rectanglelabels.*are read here"):
            in_json(one, labelled=labelled)
    picture = {"data": {"image": "s3://b/a"}, "annotations": [{"result": [choice("cat")]}]}
    with pytest.raises(ValueError, match=r"field `image` holds addresses of files"):
        in_json(picture)


@given(st.lists(spanned(), min_size=1, max_size=3))
def test_spans_that_were_written_for_correction_come_back(texts: list[Spanned]) -> None:
    file = io.StringIO()
    with label_studio.writing(file, "smidgen") as write:
        for one in texts:
            write(Proposal(one.text, spans=one.spans))
    written = json.loads(file.getvalue())
    assert set(in_json(*written).left_out) == {"unanswered"}
    for one in written:  # as an annotator accepts them
        one["annotations"] = [{"result": one["predictions"][0]["result"]}]
    written.append(task("Ann", [span("Ann", 0, 3, "PER")]))
    found = in_json(*written)
    assert found.spans == {one.text: one.spans for one in texts} | {"Ann": ((0, 3, "PER"),)}


def test_labels_that_were_written_for_correction_come_back_with_pairs_and_ids() -> None:
    file = io.StringIO()
    with label_studio.writing(file, "smidgen") as write:
        write(Proposal("a 📉", "b", "bill", score=0.5, id="n-7"))
        write(Proposal("c", label="delivery"))
    one, other = json.loads(file.getvalue())
    assert one["predictions"][0] | {"result": 0} == {
        "model_version": "smidgen",
        "score": 0.5,
        "result": 0,
    }
    for task_ in (one, other):
        task_["annotations"] = [{"result": task_["predictions"][0]["result"]}]
    first, second = in_json(one, other).rows
    assert isinstance(first, Row) and isinstance(second, Row)
    assert first.columns == {"text": "a 📉", "text_b": "b", "id": "n-7", "label": "bill"}
    assert second.columns["label"] == "delivery"


def test_nothing_written_is_an_empty_list() -> None:
    file = io.StringIO()
    with label_studio.writing(file, "smidgen"):
        pass
    assert json.loads(file.getvalue()) == []
