"""Arrow and Parquet: whatever the columns beside the text hold, and files that are damaged."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.formats.arrow import SPLITS, STATE
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import read_file, read_folder
from smidgen.edge_client.texts.parts import ANY, Labels
from tests.edge_client.formats.written.table_files import LABELS, Labelled, reading

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS, NAMES = pa.array(["a", "b"]), pa.array(["good", "bad"])
BOTH = [Labelled("a", "good"), Labelled("b", "bad")]
PEOPLE = Labels(("PER",), kind_named("tagging").files)


def stream(path: Path, table: Any) -> None:
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def file(path: Path, table: Any) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "a.arrow": stream,
    "b.arrow": file,
    "c.feather": lambda path, table: feather.write_feather(table, path),
    "d.parquet": lambda path, table: parquet.write_table(table, path),
}


def classes(table: Any, **named: object) -> Any:
    """With the metadata by which `datasets` names the classes of columns."""
    told = {"info": {"features": named}}
    return table.replace_schema_metadata({b"huggingface": json.dumps(told).encode()})


def label_of(*names: str) -> dict[str, object]:
    return {"names": [*names], "_type": "ClassLabel"}


def numbers(kind: Any, *values: int) -> Any:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def not_utf_8() -> Any:
    return pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"x"]).buffers())


OTHERS = {
    "far times": numbers(pa.timestamp("s"), 2**62, 1),
    "far days": numbers(pa.date32(), 2**31 - 1, 0),
    "far spans": numbers(pa.duration("s"), 2**62, 1),
    "nanoseconds": numbers(pa.timestamp("ns"), 1, 2),
    "no such zone": numbers(pa.timestamp("us", "Nowhere/Bad"), 1, 2),
    "bytes": pa.array([b"\xff", None]),
    "nested": pa.array([{"x": [[1]]}, None]),
    "maps": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "months": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "nothing": pa.nulls(2),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("other", OTHERS)
def test_columns_that_nobody_asks_for_may_hold_anything(
    tmp_path: Path, name: str, other: str
) -> None:
    names = ["more", "text", "label", "more"]
    table = pa.table([OTHERS[other], TEXTS, NAMES, OTHERS[other]], names=names)
    try:
        WRITERS[name](tmp_path / name, table)
    except pa.ArrowException:
        pytest.skip(f"{name[2:]} does not hold {other}")
    assert reading(tmp_path / name, LABELS).found == BOTH


STRINGS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("name", ["a.arrow", "b.arrow", "d.parquet"])
@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_strings_are_read_however_they_are_kept(tmp_path: Path, name: str, kind: Any) -> None:
    WRITERS[name](tmp_path / name, pa.table({"text": TEXTS.cast(kind), "label": NAMES.cast(kind)}))
    assert reading(tmp_path / name, LABELS).found == BOTH


NO_TEXTS = [
    ("int64", pa.array([1, 2])),
    ("double", pa.array([1.5, float("nan")])),
    ("bool", pa.array([True, None])),
    ("binary", pa.array([b"x", b"y"])),
    ("list<item: string>", pa.array([["x"], ["y"]])),
    ("struct<x: int64>", pa.array([{"x": 1}, None])),
    ("timestamp[ns]", OTHERS["nanoseconds"]),
]


@pytest.mark.parametrize(("kind", "column"), NO_TEXTS)
@pytest.mark.parametrize("name", ["text", "text_b", "label"])
def test_a_column_of_another_type_is_named_with_it(
    tmp_path: Path, kind: str, column: Any, name: str
) -> None:
    stream(
        tmp_path / "a.arrow",
        pa.table({"text": TEXTS, "label": NAMES, "text_b": TEXTS, name: column}),
    )
    if name == "label" and kind == "int64":
        assert reading(tmp_path / "a.arrow", Labels(("1", "2"))).found == [("a", "1"), ("b", "2")]
        return
    with pytest.raises(DataError, match=f"column `{name}` is of type") as caught:
        read_file(tmp_path / "a.arrow", LABELS, labelled=True)
    assert kind in str(caught.value)


@pytest.mark.parametrize("name", ["text", "label"])
def test_a_string_that_is_not_utf_8_costs_its_row(tmp_path: Path, name: str) -> None:
    good = {"text": TEXTS, "label": pa.array(["good", "good"])}
    stream(tmp_path / "a.arrow", pa.table({**good, name: not_utf_8()}))
    back = reading(tmp_path / "a.arrow", ANY)
    assert back.left_out == 1 and back.lines == [1, 2]


@pytest.mark.parametrize("name", WRITERS)
def test_classes_go_by_their_names(tmp_path: Path, name: str) -> None:
    table = pa.table({"text": ["a", "b", "c", "d"], "label": [0, 1, -1, 7]})
    WRITERS[name](tmp_path / name, classes(table, label=label_of("good", "bad")))
    back = reading(tmp_path / name, LABELS)
    assert back.found == BOTH and back.left_out == 2


@pytest.mark.parametrize("name", WRITERS)
def test_tags_of_words_go_by_their_names(tmp_path: Path, name: str) -> None:
    table = pa.table({"tokens": [["Ann", "left"], []], "ner_tags": [[1, 0], []]})
    named = {"feature": label_of("O", "B-PER"), "_type": "List"}
    WRITERS[name](tmp_path / name, classes(table, ner_tags=named))
    (found,) = read_file(tmp_path / name, PEOPLE, labelled=True)
    assert (found.words, found.tags) == (("Ann", "left"), ("B-PER", "O"))


def saved(folder: Path, table: Any, shards: int = 1) -> Path:
    """A folder as `save_to_disk` of `datasets` 5 writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{at:05}-of-{shards:05}.arrow" for at in range(shards)]
    for at, name in enumerate(names):
        stream(folder / name, table.slice(at * 2, 2))
    (folder / STATE).write_text(json.dumps({"_data_files": [{"filename": one} for one in names]}))
    return folder


def letters(count: int) -> Any:
    table = pa.table({"text": [*"abcdef"[:count]], "label": [0, 1] * (count // 2)})
    return classes(table, label=label_of("good", "bad"))


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    back = reading(saved(tmp_path / "all", letters(6), 3), LABELS)
    assert [one.text for one in back.found] == [*"abcdef"] and back.lines == [1, 2, 3, 4, 5, 6]
    (tmp_path / "all" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(DataError, match=r"all lacks data-00001-of-00003\.arrow"):
        reading(tmp_path / "all", LABELS)


def test_splits_are_parts_of_the_texts(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("test", 2), ("validation", 6)):
        saved(tmp_path / split, letters(count))
    (tmp_path / SPLITS).write_text(json.dumps({"splits": ["train", "test", "validation"]}))
    found = read_folder(tmp_path, LABELS)
    assert (len(found.labelled), len(found.unlabelled), len(found.test)) == (2, 0, 2)


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"_data_files": 1}', "[" * 100_000])
def test_a_damaged_state_is_one_error(tmp_path: Path, state: str) -> None:
    saved(tmp_path / "all", letters(2))
    (tmp_path / "all" / STATE).write_text(state)
    with pytest.raises(DataError, match=r"save the dataset again|lacks its files"):
        reading(tmp_path / "all", LABELS)


@given(
    st.sampled_from([*WRITERS]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.floats(0.1, 1),
)
def test_a_damaged_file_is_one_error_or_its_rows(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    changes: Sequence[tuple[float, int]],
    kept: float,
) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    WRITERS[name](path, pa.table({"text": ["a letter", "é", None], "label": ["x", "y", "z"]}))
    body = bytearray(path.read_bytes())
    for place, byte in changes:
        body[int(place * len(body))] = byte
    path.write_bytes(body[: int(kept * len(body))])
    said = f"{path}\n"
    try:
        rows = len(reading(path).lines)
    except WrongInput as error:
        rows, said = 0, f"{error}\n"
    assert rows <= 3 and str(path) in said and said.count("\n") == 1


def test_an_older_feather_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(DataError, match=r"Feather file of version 1, .* as version 2"):
        reading(tmp_path / "a.feather")
