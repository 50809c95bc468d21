"""Parquet, Arrow and folders of `datasets`, written by pyarrow as these have them."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.arrow import SPLITS, STATE
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import read_folder
from smidgen.edge_client.texts.parts import Labels
from tests.edge_client.formats.test_json_rows import GOOD_BAD, texts_of

pyarrow = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

PER = Labels(("PER",), kind_named("tagging").files)
TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=5)


def with_classes(table: Any, **classes: object) -> Any:
    """A table with the features that `datasets` keeps beside it."""
    features = {name: {"names": names, "_type": "ClassLabel"} for name, names in classes.items()}
    listed = {
        name: {"feature": one, "_type": "List"} if name == "ner_tags" else one
        for name, one in features.items()
    }
    info = json.dumps({"info": {"features": listed}})
    return table.replace_schema_metadata({"huggingface": info})


def write(table: Any, path: Path) -> Path:
    """A file of the form that its name promises, or the folder of a saved dataset."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=2)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    elif path.suffix == ".arrow":
        with pyarrow.ipc.new_stream(path, table.schema) as file:
            file.write_table(table, max_chunksize=2)
    else:
        path.mkdir(parents=True)
        half = table.num_rows // 2
        parts = {"a.arrow": table.slice(0, half), "b.arrow": table.slice(half)}
        for name, part in parts.items():
            write(part, path / name)
        state = {"_data_files": [{"filename": name} for name in parts], "_indices_data_files": None}
        (path / STATE).write_text(json.dumps(state))
    return path


NAMES = ("a.parquet", "a.feather", "a.arrow", "saved")


@given(
    rows=st.lists(st.tuples(TEXTS, st.sampled_from(("good", "bad", "ugly", "", None))), max_size=6),
    name=st.sampled_from(NAMES),
)
def test_every_row_is_read_or_left_out(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, str | None]],
    name: str,
) -> None:
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    schema = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.string())])
    path = write(pyarrow.table(columns, schema), tmp_path_factory.mktemp("arrow") / name)
    found, accounting = texts_of(path)
    good = [
        row
        for row in rows
        if row[0] and row[0].strip() and "\0" not in row[0] and row[1] in GOOD_BAD.labels
    ]
    assert [(one.text, one.label) for one in found] == good
    assert (accounting.rows, accounting.read) == (len(rows), len(good))


@pytest.mark.parametrize("name", NAMES)
def test_class_numbers_are_read_by_the_names_that_the_file_has_for_them(
    tmp_path: Path, name: str
) -> None:
    table = pyarrow.table({"text": ["a", "b", "c", "d"], "label": [1, 0, -1, None]})
    found, accounting = texts_of(write(with_classes(table, label=["bad", "good"]), tmp_path / name))
    assert [one.label for one in found] == ["good", "bad"]
    assert accounting.reasons == {"label": 2} and accounting.rows == 4
    assert "`label` as the names of its classes" in accounting.notes


@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_tags_are_read_by_their_names(tmp_path: Path, name: str) -> None:
    table = pyarrow.table({"tokens": [["Ann", "left"], ["x"]], "ner_tags": [[1, 0], [0]]})
    named = with_classes(table, ner_tags=["O", "B-PER", "I-PER"])
    found, accounting = texts_of(write(named, tmp_path / name), PER)
    assert [one.tags for one in found] == [("B-PER", "O"), ("O",)]
    assert "`ner_tags` as the names of its classes" in accounting.notes


def test_numbers_of_tags_without_names_are_left_out(tmp_path: Path) -> None:
    table = pyarrow.table({"tokens": [["Ann"]], "ner_tags": [[1]]})
    found, accounting = texts_of(write(table, tmp_path / "a.parquet"), PER)
    assert not found and "numbers are names here" in accounting.faults[0]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("text", [{"a": 1}], "column `text` is of type struct<a: int64>; strings are expected"),
        ("text", [["a"]], "column `text` is of type list<"),
        ("text", [1.5], "column `text` is of type double; strings are expected"),
        ("text", [b"a"], "column `text` is of type binary; strings are expected"),
        ("text_b", [[1]], "column `text_b` is of type list<"),
        ("label", [1.0], "type double; strings or class numbers are expected"),
        ("label", [date(2020, 1, 1)], "column `label` is of type date32[day]; strings or class"),
        ("label", [["good"]], "column `label` is of type list<"),
        ("id", [{"oid": "1"}], "column `id` is of type struct<oid: string>"),
    ],
)
def test_a_column_of_another_type_is_refused_by_its_name_and_type(
    tmp_path: Path, column: str, values: list[object], said: str
) -> None:
    table = pyarrow.table({"text": ["a"], "label": ["good"], column: values})
    with pytest.raises(DataError) as caught:
        texts_of(write(table, tmp_path / "a.parquet"))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    columns = [pyarrow.array([one]) for one in ("a", "good", "bad", "x", "y")]
    for names, said in (
        (["text", "label", "label", "x", "y"], "2 columns are called `label`; one is expected"),
        (["text", "label", "z", "z", "y"], ""),
    ):
        path = write(pyarrow.Table.from_arrays(columns, names=names), tmp_path / "a.parquet")
        if said:
            with pytest.raises(DataError, match=said):
                texts_of(path)
        else:
            assert [one.label for one in texts_of(path)[0]] == ["good"]


def test_what_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    table = pyarrow.table(
        {"text": ["a"], "label": ["good"], "meta": [{"x": [b"\xff", None]}], "more": ["\0"]}
    )
    assert len(texts_of(write(table, tmp_path / "a.parquet"))[0]) == 1


def test_several_splits_in_place_of_one_are_named(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["a"], "label": ["good"]})
    for split in ("train", "test"):
        write(table, tmp_path / "saved" / split)
    (tmp_path / "saved" / SPLITS).write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match="several splits that datasets saved: test, train; give"):
        texts_of(tmp_path / "saved")


def test_the_splits_of_datasets_are_the_parts_of_a_folder(tmp_path: Path) -> None:
    for split in ("train", "test", "unsupervised", "validation"):
        labels = [-1, -1] if split == "unsupervised" else [1, 0]
        table = pyarrow.table({"text": [f"{split} a", "b"], "label": labels})
        write(with_classes(table, label=["bad", "good"]), tmp_path / split)
    (tmp_path / SPLITS).write_text('{"splits": ["train", "test", "unsupervised", "validation"]}')
    data = read_folder(tmp_path, GOOD_BAD)
    assert [one.label for one in data.labelled] == ["good", "bad"]
    assert [one.text for one in data.unlabelled] == ["unsupervised a", "b"]
    assert [one.text for one in data.test] == ["test a", "b"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("{", "does not name its files; save the dataset again"),
        ('{"_data_files": [{"filename": "../a.arrow"}]}', "lacks a.arrow"),
        ('{"_data_files": []}', "lacks its files"),
        (
            '{"_data_files": [{"filename": "b.arrow"}], "_indices_data_files": [{}]}',
            "rows were selected; save flatten_indices",
        ),
    ],
)
def test_a_damaged_folder_of_datasets_is_refused(tmp_path: Path, state: str, said: str) -> None:
    folder = write(pyarrow.table({"text": ["a"], "label": ["good"]}), tmp_path / "saved")
    (folder / "a.arrow").rename(tmp_path / "a.arrow")
    (folder / STATE).write_text(state)
    with pytest.raises(DataError, match=said):
        texts_of(folder)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather"])
@pytest.mark.parametrize("body", [b"", b"hello world" * 9, b"ARROW1\0\0", b"PAR1"])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(DataError, match=r"cannot be read as (Parquet|Arrow): ") as caught:
        texts_of(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_places_of_texts_that_lie_outside_of_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    offsets = pyarrow.py_buffer(b"\0\0\0\0" + (1 << 30).to_bytes(4, "little") + b"\1\0\0\0")
    texts = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, [None, offsets, pyarrow.py_buffer(b"a")]
    )
    write(pyarrow.table({"text": texts, "label": ["good", "bad"]}), path)
    with pytest.raises(DataError, match="cannot be read as Arrow: "):
        texts_of(path)
