import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation.exports import EXPORTS
from smidgen.edge_client.formats.registry import best, head, holds, read
from smidgen.edge_client.formats.source import DataError, Dialect, Head, LeftOut, Row, Source, Wants
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import ANY, Labels
from tests.edge_client.formats.annotation.files import (
    LABELLED,
    SPANS,
    TAGGED,
    TAGGED_TEXT,
    A,
    B,
    C,
)

WORDS = ("Naloxone", "(", "twice", ")", "for", "heart", "failure")
TAGS = ("B-Chemical", "O", "O", "O", "O", "B-Disease", "I-Disease")
ENTITIES = Labels(("Chemical", "Disease"), kind_named("tagging").files)
KEYS = tuple(
    """
    text data label annotations result value choices labels from_name start end answer accept
    spans fields responses _input_hash entities annotation_id annotator lead_time id topic
    a.responses a.responses.status annotation status inputs cats
    """.split()  # noqa: SIM905 - twenty quotes say less
)
WANTS: tuple[Wants, ...] = ("text", "label", "tags")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


def written(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(body, newline="")
    return path


@pytest.mark.parametrize("name", LABELLED)
def test_each_export_is_known_by_its_marks_and_read_for_its_labels(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    said, body = LABELLED[name]
    path = written(tmp_path, name, body)
    ((score, reader),) = best(head(path))
    assert reader.name == said and score > 0.6 and "label" in holds(path)
    with caplog.at_level(logging.WARNING):
        assert read_file(path, Labels(("bill", "delivery")), labelled=True) == [
            Example(A, "", "bill")
        ]
    assert said in caplog.text and "twice" not in caplog.text and "again" not in caplog.text


@pytest.mark.parametrize("name", LABELLED)
def test_every_row_is_accounted_for(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, LABELLED[name][1])
    labelled, texts = list(read(Source(path, "label"))), list(read(Source(path)))
    assert [one.line for one in labelled] == [one.line for one in texts]
    assert all(isinstance(one, Row) for one in texts)
    reasons = {one.reason for one in labelled if isinstance(one, LeftOut)}
    assert "ambiguous" in reasons and reasons & {"rejected", "unanswered"}
    assert {example.text for example in read_file(path, ANY, labelled=False)} == {A, B, C}


@pytest.mark.parametrize("name", TAGGED)
def test_spans_become_words_with_tags(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, TAGGED[name])
    assert "tags" in holds(path)
    (example,) = read_file(path, ENTITIES, labelled=True)
    assert (example.text, example.words, example.tags) == (TAGGED_TEXT, WORDS, TAGS)


def test_a_span_that_cuts_a_word_leaves_its_text_out(tmp_path: Path) -> None:
    rows = [{"text": TAGGED_TEXT, "label": SPANS}, {"text": "Bob’s", "label": [[0, 2, "Disease"]]}]
    path = written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_file(path, ENTITIES, labelled=True)) == 1
    alone = written(tmp_path, "b.jsonl", json.dumps(rows[1]) + "\n")
    with pytest.raises(DataError, match=r"its span 0 to 2 cuts a word"):
        read_file(alone, ENTITIES, labelled=True)


def test_the_user_says_which_field_and_which_control(tmp_path: Path) -> None:
    body = LABELLED["studio.csv"][1].replace('"text"', '"review"').partition('"","",3')[0]
    path = written(tmp_path, "a.csv", body)
    with pytest.raises(DataError, match="say it by --label-column"):
        read_file(path, ANY, labelled=True)
    dialect = Dialect("review", "topic")
    assert read_file(path, ANY, labelled=True, dialect=dialect) == [Example(A, "", "bill")]


def test_an_array_in_a_file_of_lines_and_lines_in_a_file_of_json_are_read(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in LABELLED["doccano.jsonl"][1].splitlines()]
    for name, body in (("a.jsonl", json.dumps(rows)), ("a.json", LABELLED["doccano.jsonl"][1])):
        path = written(tmp_path, name, body)
        assert read_file(path, ANY, labelled=True) == [Example(A, "", "bill")]


def test_plain_rows_are_no_export(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a", "label": "bill"},
        {"tokens": ["a"], "tags": ["O"]},
        {"text": "a", "label": "bill", "data": "x", "id": 3},
        {"tokens": ["a"], "labels": ["O"], "text": "a"},
    ]
    for row in rows:
        found = Head(".jsonl", json.dumps(row) + "\n")
        assert not [one.name for one in EXPORTS if one.sniff(found)]
    assert not [one.name for one in EXPORTS if one.sniff(Head(".csv", "id,text,label\n1,a,b\n"))]


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON) | JSON, max_size=3), st.data())
def test_whatever_json_holds_each_row_is_read_or_left_out_or_the_file_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], data: st.DataObject
) -> None:
    reader = data.draw(st.sampled_from([one for one in EXPORTS if ".json" in one.endings]))
    wants = data.draw(st.sampled_from(WANTS))
    path = written(tmp_path_factory.mktemp("any"), "a.json", json.dumps(rows))
    reader.sniff(head(path))
    assert "text" in reader.gives(head(path))
    try:
        found = list(reader.read(Source(path, wants)))
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - it may be refused or not
    else:
        assert len(found) == len(rows)
