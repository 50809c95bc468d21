import io
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation import doccano
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.formats.source import Dialect
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import read_texts
from smidgen.edge_client.texts.parts import Labels, files_of
from tests.edge_client.formats.annotation.annotated import Read, Spanned, read, spanned


def exported(*rows: Any, labelled: bool = True, **dialect: str) -> Read:
    return read(doccano.answered, rows, Dialect(**dialect), labelled)


@given(st.lists(st.lists(st.sampled_from(("bill", "C#", "a, b")), max_size=3, unique=True)))
def test_a_text_with_one_label_is_read(labels: list[list[str]]) -> None:
    rows = [
        {"id": n, "text": f"t{n}", "label": one, "Comments": []} for n, one in enumerate(labels)
    ]
    found = exported(*rows)
    assert found.labels == {f"t{n}": one[0] for n, one in enumerate(labels) if len(one) == 1}
    expected = ["ambiguous" if one else "unanswered" for one in labels if len(one) != 1]
    assert found.left_out == expected
    assert len(exported(*rows, labelled=False).labels) == len(rows)


@given(st.lists(spanned(), max_size=3))
def test_spans_are_lists_or_objects(texts: list[Spanned]) -> None:
    every = [Spanned("Ann", ((0, 3, "PER"),), (), ()), *texts]
    lists = [{"text": one.text, "label": [list(span) for span in one.spans]} for one in every]
    names = ("start_offset", "end_offset", "label")
    objects = [
        {"text": one.text, "entities": [dict(zip(names, span, strict=True)) for span in one.spans]}
        for one in every
    ]
    expected = {one.text: one.spans for one in every}
    assert exported(*lists).spans == exported(*objects).spans == expected


def test_texts_without_a_span_are_counted_and_relations_are_named() -> None:
    one = {"text": "Ann", "entities": [{"label": "PER", "start_offset": 0, "end_offset": 3}]}
    found = exported(one | {"relations": [{"id": 1}]}, {"text": "b", "entities": []})
    assert found.spans == {"Ann": ((0, 3, "PER"),), "b": ()}
    expected = ["its relations left aside", "1 texts without a span as texts without entities"]
    assert found.notes == expected


def test_a_label_of_a_text_stands_beside_its_spans() -> None:
    found = exported({"text": "to Rome", "cats": ["flight"], "entities": [[3, 7, "City"]]})
    assert found.labels == {"to Rome": "flight"} and found.spans == {"to Rome": ((3, 7, "City"),)}


def test_older_exports_call_the_text_data_and_meta_data_does_not_matter() -> None:
    rows = [{"id": 1, "data": "a", "label": ["bill"], "city": "Rome"}]
    assert exported(*rows).labels == {"a": "bill"}


def test_where_labels_are_wanted_one_odd_row_makes_no_spans_of_the_others(tmp_path: Path) -> None:
    rows = [["food"], [["x"]], ["price"], None, [0, 1, 1], 3]
    lines = [json.dumps({"text": f"t{n}", "labels": one}) for n, one in enumerate(rows)]
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join([*lines, '{"text": "no field"}', '{"text": "e", "labels": []}']))
    files, accounting = kind_named("multilabel").files, Accounting()
    wanted = Labels(("food", "price"), files)
    found = [one for _, one, _ in read_texts(path, wanted, True, accounting)]
    assert [(one.text, one.label) for one in found] == [("t0", "food"), ("t2", "price"), ("e", "")]
    assert accounting.reasons == {"ambiguous": 3, "unanswered": 2}
    for line in (5, 6):
        assert f"line {line}: `labels` holds numbers; names" in accounting.faults[line - 3]
    assert files_of(tmp_path, files) == {"labelled": path}


def test_what_is_no_span_or_no_label_leaves_its_row_out() -> None:
    spans = [[0, 1.5, "X"], [0, 1], [True, 2, "X"], [0, 2, 3], "0-2", {"start_offset": 0}]
    rows = [{"text": f"b{n}", "label": [one]} for n, one in enumerate(spans)]
    found = exported({"text": "Ann", "label": [[0, 3, "PER"]]}, *rows)
    assert found.left_out == ["ambiguous"] * len(spans)
    odd = [{"text": "c", "label": ["bill"]}, {"text": "d", "label": [1.5]}]
    assert exported(*odd).left_out == ["ambiguous"]


@given(st.lists(spanned(), max_size=3))
def test_what_was_written_for_correction_is_read_again(texts: list[Spanned]) -> None:
    file = io.StringIO()
    with doccano.writing(file, "smidgen") as write:
        write(Proposal("Ann", spans=((0, 3, "PER"),), score=0.5, id="n"))
        for one in texts:
            write(Proposal(one.text, spans=one.spans))
    assert file.getvalue().isascii()
    found = exported(*map(json.loads, file.getvalue().splitlines()))
    assert found.spans == {"Ann": ((0, 3, "PER"),)} | {one.text: one.spans for one in texts}


def test_a_label_and_a_pair_that_were_written_are_read_again() -> None:
    file = io.StringIO()
    with doccano.writing(file, "smidgen") as write:
        write(Proposal("a 📉", "b", "bill", score=0.5))
    (row,) = exported(json.loads(file.getvalue())).rows
    assert getattr(row, "columns", None) == {"text": "a 📉", "text_b": "b", "label": "bill"}
