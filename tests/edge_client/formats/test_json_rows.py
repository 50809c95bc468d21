"""Objects of JSON against an oracle: who writes them knows which are texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats import json_rows, source
from smidgen.edge_client.formats.registry import read
from smidgen.edge_client.formats.source import DataError, LeftOut, Source
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import Example, every_row, leave_out
from smidgen.edge_client.texts.parts import Labels

GOOD_BAD = Labels(("good", "bad"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
LABELS = st.sampled_from(("good", "bad")) | VALUES
OBJECTS = st.fixed_dictionaries({}, optional={"text": VALUES, "label": LABELS, "meta": VALUES})
ITEMS = st.lists(OBJECTS | VALUES, max_size=6)


def texts_of(path: Path, wanted: Labels = GOOD_BAD) -> tuple[list[Example], Accounting]:
    accounting, examples = Accounting(), []
    for found in every_row(path, wanted, True, accounting.notes):
        if found.example is None:
            leave_out(accounting, found)
        else:
            accounting.read += 1
            examples.append(found.example)
    return examples, accounting


def is_text(item: Any) -> bool:
    """Whether an object is a text with a label: the same rule, once more."""
    if not isinstance(item, dict) or not isinstance(text := item.get("text"), str):
        return False
    is_whole = "\0" not in text and bool(text.strip())
    return is_whole and item.get("label") in ("good", "bad")


@given(items=ITEMS, name=st.sampled_from(("a.jsonl", "a.json", "array.jsonl", "array.json")))
def test_only_strings_are_texts_and_every_object_is_read_or_left_out(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], name: str
) -> None:
    path = tmp_path_factory.mktemp("json") / name
    is_array = name.startswith("array")
    items = [{"meta": 1}, *items]  # by the first it is known
    path.write_text(json.dumps(items, indent=1) if is_array else "\n".join(map(json.dumps, items)))
    found, accounting = texts_of(path)
    good = [item for item in items if is_text(item)]
    assert [(one.text, one.label) for one in found] == [(i["text"], i["label"]) for i in good]
    assert accounting.rows == len(items)
    assert accounting.read == len(good)


@given(items=st.lists(OBJECTS, max_size=4))
def test_an_array_says_what_lines_say(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("json")
    (folder / "a.json").write_text(json.dumps(items, indent=2))
    (folder / "a.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    array, lines = (list(read(Source(folder / f"a.{end}"))) for end in ("json", "jsonl"))
    assert repr(array) == repr(lines)


@pytest.mark.parametrize(
    ("name", "body", "form"),
    [
        ("a.json", '{"text": "a", "label": "good"}\n{"text": "b", "label": "bad"}\n', "JSON lines"),
        ("a.jsonl", '\ufeff [\n{"text": "a", "label": "good"}\n]', "a JSON array"),
    ],
)
def test_the_beginning_says_whether_a_file_is_lines_or_an_array(
    tmp_path: Path, name: str, body: str, form: str
) -> None:
    (tmp_path / name).write_text(body)
    found, accounting = texts_of(tmp_path / name)
    assert found[0].text == "a" and accounting.notes == [form]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('[{"text": "a"}', "a comma, or the array's end, is expected behind object 1"),
        ('[{"text": "a"}] x', "a comma, or the array's end, is expected behind object 1"),
        ('[{"text": "a"},]', "object 2: not JSON: Expecting value"),
        ('[{"text": "a"} {"text": "b"}]', "expected behind object 1"),
        ("[" * 10**5, "object 1: not JSON: nested too deeply"),
        ("[" + '{"n": ' + "9" * 5000 + "}]", "object 1: not JSON"),
        ('{\n"rows": [{"text": "a"}]}', "an array of objects is expected, came an object with row"),
        ("hello", "came what is not JSON: Expecting value"),
    ],
)
def test_a_damaged_array_is_refused_in_one_line(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "a.json").write_text(body)
    with pytest.raises(DataError, match=r"a\.json") as caught:
        list(read(Source(tmp_path / "a.json")))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("body", ["", "[]", " [ ] \n", "\ufeff\n"])
def test_an_empty_array_has_no_rows(tmp_path: Path, body: str) -> None:
    (tmp_path / "a.json").write_text(body)
    assert not list(read(Source(tmp_path / "a.json")))


def test_an_array_that_cannot_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MOST_ARRAY", 1000)
    (tmp_path / "a.json").write_text(json.dumps([{"text": "a" * 2000}]))
    with pytest.raises(DataError, match=r"more than 1,000 characters.*save it as JSON lines"):
        list(read(Source(tmp_path / "a.json")))


def test_a_key_that_is_read_twice_is_left_out_and_named(tmp_path: Path) -> None:
    body = ('{"text": "a", "text": "b"}', '{"text": "a", "meta": 1, "meta": 2}', '{"text": "c"}')
    (tmp_path / "a.jsonl").write_text("\n".join(body))
    first, *others = read(Source(tmp_path / "a.jsonl"))
    assert first == LeftOut(1, "ambiguous", "two values of `text`; one is expected")
    assert not any(isinstance(one, LeftOut) for one in others)


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        *[("text", value, name) for value, name in [(["a"], "a list"), (5, "a whole number")]],
        *[("label", value, name) for value, name in [(1.0, "a fraction"), (True, "a boolean")]],
        *[("id", value, name) for value, name in [({"$oid": "1"}, "an object"), ([1], "a list")]],
        ("language", ["de"], "a list"),
        ("text_b", float("nan"), "NaN"),
    ],
)
def test_a_value_that_is_no_text_is_named_by_its_column_and_type(
    tmp_path: Path, column: str, value: object, name: str
) -> None:
    row = {"text": "a", "label": "good", column: value}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    found, accounting = texts_of(tmp_path / "a.jsonl")
    assert not found and accounting.reasons["not text"] == 1
    assert accounting.faults == [f"line 1: `{column}` is {name}; a string is expected"]


def test_what_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "good", "meta": meta} for meta in ("\0", "\ud800", [{"x": 1}])]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(texts_of(tmp_path / "a.jsonl")[0]) == 3


@pytest.mark.parametrize("tags", ["tags", "ner_tags"])
def test_class_numbers_in_place_of_tags_are_left_out_by_their_name(
    tmp_path: Path, tags: str
) -> None:
    lines = [{"tokens": ["a"], tags: [1]}, {"tokens": ["a"], tags: ["O"]}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found, accounting = texts_of(
        tmp_path / "a.jsonl", Labels(("PER",), kind_named("tagging").files)
    )
    assert len(found) == 1 and accounting.left_out == 1
    assert json_rows.NAMES in accounting.faults[0] or "two lists of strings" in accounting.faults[0]
