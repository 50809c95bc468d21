from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation import prodigy
from smidgen.edge_client.formats.source import Dialect
from tests.edge_client.formats.annotation.annotated import Read, Spanned, read, spanned

OPTIONS = [{"id": "bill", "text": "Bill"}, {"id": "delivery", "text": "Delivery"}]


def annotated(*rows: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(prodigy.answered, rows, Dialect(**dialect), labelled)


def choice(text: str, *accept: str, answer: str = "accept") -> dict[str, Any]:
    return {"text": text, "options": OPTIONS, "accept": list(accept), "answer": answer}


@given(st.lists(st.sampled_from(("accept", "reject", "ignore", None))))
def test_only_accepted_rows_are_read(answers: list[str | None]) -> None:
    rows = [{"text": f"t{n}", "label": "bill", "answer": one} for n, one in enumerate(answers)]
    found = annotated(*rows)
    assert list(found.labels) == [f"t{n}" for n, one in enumerate(answers) if one == "accept"]
    expected = ["rejected" if one else "unanswered" for one in answers if one != "accept"]
    assert found.left_out == expected
    assert len(annotated(*rows, labelled=False).labels) == len(rows)


def test_of_options_exactly_one_is_accepted() -> None:
    rows = [choice("a", "bill"), choice("b"), choice("c", "bill", "delivery")]
    found = annotated(*rows, choice("d", "bill", answer="ignore"))
    assert found.labels == {"a": "bill"}
    assert found.left_out == ["ambiguous", "ambiguous", "rejected"]


def asked(label: str, answer: str, text: str = "a", number: int = 7) -> dict[str, Any]:
    return {"text": text, "label": label, "answer": answer, "_input_hash": number}


@pytest.mark.parametrize(
    ("rows", "label", "left_out"),
    [
        ([asked("bill", "reject"), asked("delivery", "accept")], "delivery", ["rejected"]),
        ([asked("bill", "accept"), asked("bill", "accept")], "bill", ["duplicate"]),
        ([asked("bill", "accept"), asked("delivery", "accept")], None, ["ambiguous"] * 2),
        ([asked("bill", "accept"), asked("bill", "reject")], None, ["ambiguous", "rejected"]),
        ([asked("bill", "ignore"), asked("bill", "accept")], "bill", ["rejected"]),
    ],
)
def test_rows_of_one_input_are_one_text(
    rows: list[dict[str, Any]], label: str | None, left_out: list[str]
) -> None:
    found = annotated(*rows)
    assert found.labels.get("a") == label and found.left_out == left_out


@given(st.lists(spanned(), max_size=3))
def test_spans_have_offsets_and_labels(texts: list[Spanned]) -> None:
    names = ("start", "end", "label")
    rows = [
        {"text": one.text, "spans": [dict(zip(names, span, strict=True)) for span in one.spans]}
        for one in texts
    ]
    expected = {one.text: one.spans for one in texts}
    assert annotated(*rows).spans == expected  # as training data, which has no answers
    rows = [row | {"answer": "accept", "tokens": [], "_view_id": "ner_manual"} for row in rows]
    assert annotated(*rows).spans == expected


def test_a_yes_to_one_span_does_not_say_all_of_them() -> None:
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    row = {"text": "Ann Lee", "spans": spans, "answer": "accept", "_is_binary": True}
    assert annotated(row).left_out == ["ambiguous"]


def test_highlights_beside_a_label_are_no_spans() -> None:
    row = asked("bill", "accept") | {"spans": [{"start": 0, "end": 1, "pattern": 3}]}
    found = annotated(row)
    assert found.labels == {"a": "bill"} and not found.spans


def test_relations_are_left_aside_and_said() -> None:
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    row = {"text": "Ann", "spans": spans, "relations": [{"head": 0}], "answer": "accept"}
    found = annotated(row)
    assert found.spans == {"Ann": ((0, 3, "PER"),)}
    assert found.notes == ["its relations left aside"]


@pytest.mark.parametrize("field", ["image", "audio", "pages"])
def test_what_is_not_about_texts_is_refused_by_its_field(field: str) -> None:
    row = {field: "x.png", "label": "cat", "answer": "accept"}
    with pytest.raises(ValueError, match=rf"field `{field}`.*are read here"):
        annotated(row)
