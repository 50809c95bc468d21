from pathlib import Path

import pytest

from smidgen.profiling.records.record import (
    Conditions,
    Figure,
    Record,
    RecordError,
    append,
    from_line,
    read_records,
    to_line,
)

RECORD = Record(
    "train",
    {"base": "roberta-base", "engine": "onnx"},
    {"step_s": Figure((1.0, 1.5), "clock")},
    Conditions({"machine": "x86_64"}, {"numpy": "2.1"}, plan={"dtype": "float32"}),
    taken_at="2026-01-01T00:00:00+00:00",
)


def test_a_line_gives_an_equal_record_back() -> None:
    assert from_line(to_line(RECORD)) == RECORD


def test_a_half_written_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, [RECORD, RECORD])
    path.write_text(path.read_text()[:-20])
    found = read_records(path)
    assert found.records == (RECORD,)
    assert "line 2 is cut short" in found.note


def test_appending_takes_the_half_line_away(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append(path, [RECORD, RECORD])
    path.write_text(path.read_text()[:-20])
    append(path, [RECORD])
    assert read_records(path).records == (RECORD, RECORD)
    assert not read_records(path).note


def test_a_whole_record_without_its_newline_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(to_line(RECORD))
    assert read_records(path).records == (RECORD,)
    append(path, [RECORD])
    assert read_records(path).records == (RECORD, RECORD)


@pytest.mark.parametrize("length", [1, 5, 20, 200])
def test_a_first_line_cut_short_goes(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(to_line(RECORD)[:length])
    append(path, [RECORD])
    assert read_records(path).records == (RECORD,)


OTHERS = ("my notes", "my notes\n", "my notes\nmore", '{"theme": 1}', "{}\n", "\xff\xfe", "\n")


@pytest.mark.parametrize("text", [*OTHERS, to_line(RECORD) + '\n{"theme": 1}'])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordError, match=r"a\.jsonl is not a file of records"):
        append(path, [RECORD])
    assert path.read_bytes() == text.encode("latin-1")


def test_a_last_line_of_something_else_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(to_line(RECORD) + '\n{"theme": 1}')
    with pytest.raises(RecordError, match="line 2: not a record"):
        read_records(path)


def test_a_record_of_another_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(to_line(RECORD).replace('"schema":1', '"schema":7') + "\n")
    with pytest.raises(RecordError, match=r"line 1: a record of schema 7; this smidgen reads"):
        read_records(path)


@pytest.mark.parametrize("line", ["{}", "[]", "7", '{"schema": 1}', "not json"])
def test_what_is_not_a_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RecordError, match=r"a\.jsonl, line 1: "):
        read_records(path)
