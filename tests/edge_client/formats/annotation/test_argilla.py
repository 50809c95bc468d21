from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation import argilla
from smidgen.edge_client.formats.source import Dialect
from tests.edge_client.formats.annotation.annotated import Read, Spanned, read, spanned

STATUSES = ("submitted", "discarded", "draft")


def exported(*rows: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(argilla.answered, rows, Dialect(**dialect), labelled)


def nested(text: str, *values: Any, question: str = "topic", **more: Any) -> dict[str, Any]:
    responses = {question: [{"value": one, "user_id": "u"} for one in values]} if values else {}
    suggestions = {question: {"value": "other", "score": 0.9, "agent": "m"}}
    one = {"fields": {"text": text}, "metadata": {}, "suggestions": suggestions}
    return {"id": text, **one, "responses": responses, "status": "completed", **more}


def flat(text: str, *responses: tuple[Any, str], question: str = "topic") -> dict[str, Any]:
    return {
        "id": text,
        "status": "pending",
        "_server_id": None,
        "text": text,
        f"{question}.responses": [value for value, _ in responses] or None,
        f"{question}.responses.users": ["u" for _ in responses] or None,
        f"{question}.responses.status": [status for _, status in responses] or None,
        f"{question}.suggestion": "other",
        f"{question}.suggestion.score": 0.9,
    }


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(("bill", "delivery")), st.sampled_from(STATUSES))))
)
def test_only_what_was_submitted_counts(records: list[list[tuple[str, str]]]) -> None:
    rows = [flat(f"t{n}", *responses) for n, responses in enumerate(records)]
    found, labels, left_out = exported(*rows), {}, []
    for number, responses in enumerate(records):
        said = {value for value, status in responses if status == "submitted"}
        if len(said) == 1:
            labels[f"t{number}"] = said.pop()
        elif said:
            left_out.append("ambiguous")
        else:
            is_discarded = any(status == "discarded" for _, status in responses)
            left_out.append("rejected" if is_discarded else "unanswered")
    assert (found.labels, found.left_out) == (labels, left_out)
    assert len(exported(*rows, labelled=False).labels) == len(rows)


def test_nested_responses_count_where_the_record_is_completed() -> None:
    server = {"_server_id": "s"}
    rows = [
        nested("a", "bill", **server),
        nested("b", "bill", "delivery", **server),
        nested("c", "bill", "bill", **server),
        nested("d", **server),
        nested("e", "bill", status="pending", **server),
    ]
    found = exported(*rows)
    assert found.labels == {"a": "bill", "c": "bill"} and not found.notes
    assert found.left_out == ["ambiguous", "unanswered", "unanswered"]


def test_responses_of_records_that_no_server_knows_are_read_and_counted() -> None:
    found = exported(nested("a", "bill", status="pending", _server_id=None))
    assert found.labels == {"a": "bill"}
    assert found.notes == ["1 records whose responses have no status, as submitted"]


def test_several_labels_are_ambiguous_and_one_in_a_list_is_read() -> None:
    found = exported(nested("a", ["bill"]), nested("b", ["bill", "delivery"]), nested("c", []))
    assert found.labels == {"a": "bill"} and found.left_out == ["ambiguous", "unanswered"]


@given(st.lists(spanned(), max_size=3))
def test_spans_are_read_nested_and_flat(texts: list[Spanned]) -> None:
    every = [Spanned("Ann", ((0, 3, "PER"),), (), ()), *texts]
    names = ("start", "end", "label")
    values = [[dict(zip(names, span, strict=True)) for span in one.spans] for one in every]
    pairs = list(zip(every, values, strict=True))
    expected = {one.text: one.spans for one in every}
    assert exported(*(nested(one.text, value) for one, value in pairs)).spans == expected
    assert (
        exported(*(flat(one.text, (value, "submitted")) for one, value in pairs)).spans == expected
    )


def test_of_several_questions_the_user_says_which() -> None:
    one = nested("a", "bill")
    one["responses"]["tone"] = [{"value": "bad"}]
    one["responses"]["stars"] = [{"value": 3}]
    with pytest.raises(ValueError, match=r"of topic, tone\? say it by --label-column"):
        exported(one)
    assert exported(one, label_column="tone").labels == {"a": "bad"}
    with pytest.raises(ValueError, match="question `stars` is answered by numbers"):
        exported(one, label_column="stars")


def test_records_of_1_x_are_read() -> None:
    def first(text: str, status: str, annotation: Any = "bill") -> dict[str, Any]:
        return {"text": text, "inputs": {"text": text}, "annotation": annotation, "status": status}

    found = exported(first("a", "Validated"), first("b", "Discarded"), first("c", "Default", None))
    assert found.labels == {"a": "bill"} and found.left_out == ["rejected", "unanswered"]
    spans = first("Ann", "Validated", [["PER", 0, 3, 0.9]])
    assert exported(spans).spans == {"Ann": ((0, 3, "PER"),)}
    feedback: dict[str, Any] = {"fields": {"text": "a"}, "responses": []}
    for status in ("submitted", "discarded"):
        values = {"topic": {"value": status}}
        feedback["responses"] += [{"values": values, "status": status, "user_id": "u"}]
    assert exported(feedback).labels == {"a": "submitted"}
    column = [{"user_id": "u", "value": "bill", "status": "submitted"}]
    assert exported({"text": "a", "topic": column, "topic-suggestion": "x"}).labels == {"a": "bill"}
