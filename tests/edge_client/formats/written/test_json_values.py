"""JSON lines and arrays: whatever values there are, each object is read or left out and named."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smidgen.edge_client.formats.lines import LONGEST_LINE
from smidgen.edge_client.formats.source import MOST_ARRAY, DataError
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.examples import every_row, read_texts
from smidgen.edge_client.texts.parts import ANY, Labels
from tests.edge_client.formats.written.table_files import LABELS, Labelled, ReadBack, reading, texts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(without="\0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(without="\0"), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(["text", "label", "text_b", "id", "language", "more"])
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES), max_size=5)
ENDINGS = ("jsonl", "json", "ndjson")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


def written(folder: Path, ending: str, found: list[Any]) -> Path:
    path = folder / f"a.{ending}"
    lines = "\n".join(map(json.dumps, found)) + "\n"
    path.write_text(json.dumps(found) if ending == "json" else lines)
    return path


def is_kept(one: dict[str, Any]) -> bool:
    """Whether an object is a labelled text, as docs/tasks.md has it."""
    text, label = one.get("text"), one.get("label")
    are_texts = isinstance(text, str) and isinstance(one.get("text_b"), str | None)
    is_label = isinstance(label, str | int) and not isinstance(label, bool)
    is_said = all(is_word(one.get(key)) for key in ("id", "language"))
    return are_texts and bool(str(text).strip()) and is_label and str(label) != "" and is_said


def is_word(value: Any) -> bool:
    """Whether a value names something, or is not there: a text or a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return value is None or isinstance(value, str) or is_number


@given(OBJECTS, st.sampled_from(ENDINGS))
def test_what_is_no_text_is_left_out_and_all_else_is_read(
    folder: Path, found: list[dict[str, Any]], ending: str
) -> None:
    path = written(folder, ending, [{"text": "a", "label": "x"}, *found])
    back = reading(path)
    kept = [Labelled(one["text"], str(one["label"])) for one in found if is_kept(one)]
    assert back.found == [Labelled("a", "x"), *kept]
    assert back.lines == list(range(1, len(found) + 2))


KINDS = {
    "a list": ["x"],
    "an object": {"a": 1},
    "NaN": float("nan"),
    "a boolean": True,
    "a fraction": 1.5,
}


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize("name", ["text", "text_b", "label"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_another_type_is_named_with_its_column(
    tmp_path: Path, ending: str, name: str, kind: str
) -> None:
    good = {"text": "a", "text_b": "b", "label": "good", "more": KINDS[kind]}
    path = written(tmp_path, ending, [good, {**good, name: KINDS[kind]}])
    accounting = Accounting()
    assert len([*read_texts(path, LABELS, True, accounting)]) == 1
    assert accounting.reasons == {"not text": 1}
    (said,) = accounting.faults
    assert said.startswith(f"line 2: `{name}` is {kind}; a string is expected")


TWICE = [
    ('{"text": "a", "label": "good", "text": "b"}', 0),
    ('{"text": "a", "label": "good", "label": "bad"}', 0),
    ('{"text": "a", "text_b": "", "text_b": "c", "label": "good"}', 0),
    ('{"text": "a", "label": "good", "more": 1, "more": 2}', 1),
    ('{"text": "a", "label": "good", "more": {"text": 1, "text": 2}}', 1),
]


@pytest.mark.parametrize(("body", "read"), TWICE)
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_name_that_is_there_twice_counts_where_it_is_read(
    tmp_path: Path, body: str, read: int, ending: str
) -> None:
    (tmp_path / f"a.{ending}").write_text(f"[{body}]" if ending == "json" else body + "\n")
    back = reading(tmp_path / f"a.{ending}", LABELS)
    assert (len(back.found), back.left_out) == (read, 1 - read)


@pytest.mark.parametrize("labels", [("1", "2", "3"), ("0", "1")])
def test_class_numbers_that_count_otherwise_are_refused(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    rows = [{"text": "a", "label": number} for number in (1, 2, 0)]
    with pytest.raises(DataError, match=r"line \d: a class number .* numbers are names here"):
        reading(written(tmp_path, "jsonl", rows), Labels(labels))


@given(st.lists(st.binary(max_size=20).map(lambda line: line.translate(None, b"\r\n")), max_size=6))
def test_of_any_bytes_each_line_is_of_one_row(folder: Path, lines: list[bytes]) -> None:
    body = b"\n".join(lines)
    assume(b"[" not in body)  # which may begin an array, as annotation tools export
    (folder / "any.jsonl").write_bytes(body)
    found = [one.line for one in every_row(folder / "any.jsonl", ANY, True, [])]
    text = [
        line.decode(errors="replace").removeprefix("\ufeff" * (at == 0))
        for at, line in enumerate(lines)
    ]
    assert found == [at for at, line in enumerate(text, start=1) if line.strip("\ufeff").strip()]


@pytest.mark.slow
def test_two_gigabytes_in_a_line_are_one_error(tmp_path: Path) -> None:
    """Packed they are some megabytes, and no more than one line's bound is held of them."""
    path, some = tmp_path / "a.jsonl.gz", b"y" * (1 << 24)
    member = gzip.compress(some, 1)  # members stand one behind the other
    path.write_bytes(gzip.compress(b'{"text": "') + member * 128)
    began_s = time.process_time()
    with pytest.raises(DataError, match="holds more than 536,870,912 characters"):
        [*read_texts(path, ANY, True, Accounting())]
    assert time.process_time() - began_s < 60


def test_an_array_that_cannot_be_held_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(
        gzip.compress(b"[") + gzip.compress(b" " * (1 << 20)) * (1 + MOST_ARRAY // (1 << 20))
    )
    with pytest.raises(DataError, match=r"one document of more than .* save it as JSON lines"):
        reading(path)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"text":'])
def test_deep_values_are_faults_of_their_line(tmp_path: Path, opening: str) -> None:
    good = '{"text": "a", "label": "good"}\n'
    deep = opening * (LONGEST_LINE // len(opening)) + "\n"  # first, it may begin an array
    (tmp_path / "a.jsonl").write_text(good + deep + good)
    both = [Labelled("a", "good")] * 2
    assert reading(tmp_path / "a.jsonl", LABELS) == ReadBack(both, [1, 2, 3], 1)
    (tmp_path / "a.json").write_text(opening * 200_000)
    with pytest.raises(DataError, match="not JSON: nested too deeply"):
        reading(tmp_path / "a.json")
