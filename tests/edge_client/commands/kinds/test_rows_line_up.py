"""Answers of `client predict --out` line up with the rows of the file, and all rows are counted."""

import csv
import json
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, train, write_data
from tests.edge_client.commands.kinds.texts import tagging_data

TAGS = "Naloxone\tO\nhelped\tO\n\nno\0\tO\n\nheart\tO\nfailure\tO\n"
OBJECTS = [
    {"id": "1", "text": "rain at nine"},
    {"id": "2", "text": ["a", "b"]},
    {"id": "3", "text": ""},
    {"id": "4", "text": None},
    {"id": "5", "text": "the front door"},
    {"id": "6", "note": "no text"},
    {"id": "7", "text": "storm"},
]
REASONS = ["", "not text", "empty", "empty", "", "columns", ""]
TABLE = 'id,text\n1,rain at nine\n2,"a lone quote\n3,\n4, \n5,the front door\n6,a,b\n7,storm\n'
LINES = """\
{"id": 0, "text": "rain"}
{"id": 1, "text": ["x"]}
{"id": 2, "text": ""}
{"id": 3, "text": "two\\nlines"}
{"id": 4, "te
{"id": 5, "text": "door"}
"""
TWO_LINES = 'id,text\n0,rain\n1,"open\n2,\n3,"two\nlines"\n4,storm,more\n5,door\n'
READ, BROKEN = ["rain at nine", "the front door", "storm"], ["rain", "two\nlines", "door"]
FILES = {
    "a.jsonl": ("\n".join(map(json.dumps, OBJECTS)), REASONS, READ),
    "a.json": (json.dumps(OBJECTS), REASONS, READ),
    "a.csv": (TABLE, ["", "unreadable", "empty", "empty", "", "columns", ""], READ),
    "b.jsonl": (LINES, ["", "not text", "empty", "", "unreadable", ""], BROKEN),
    "b.csv": (TWO_LINES, ["", "unreadable", "empty", "", "columns", ""], BROKEN),
}


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    assert train(tiny_base, write_data(folder / "data"), folder / "out").exit_code == 0
    return folder / "out"


@pytest.mark.few
@pytest.mark.parametrize("out", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("name", FILES)
def test_each_row_of_a_file_has_one_among_the_answers(
    tiny_base: Base, adapter: Path, tmp_path: Path, name: str, out: str
) -> None:
    body, reasons, texts = FILES[name]
    (tmp_path / name).write_text(body)
    words = ("--adapter", adapter, "--file", tmp_path / name, "--out", tmp_path / out, "--json")
    done = client("predict", tiny_base, *words)
    assert done.exit_code == 0, done
    with (tmp_path / out).open(newline="") as file:
        rows = [*csv.DictReader(file)] if out == "out.csv" else [json.loads(one) for one in file]
    assert [bool(row["label"]) for row in rows] == [reason == "" for reason in reasons]
    assert [row["text"] for row in rows if row["label"]] == texts
    if out == "out.jsonl":
        assert [row.get("left_out", "") for row in rows] == reasons
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["texts"] == 3 and told["rows"]["rows"] == len(reasons)
    assert told["rows"]["read"] + sum(told["rows"]["left_out"].values()) == len(reasons)


@pytest.mark.parametrize("out", ["out.jsonl", "out.conll"])
def test_each_text_of_words_has_one_among_the_answers(
    tiny_base: Base, tmp_path: Path, out: str
) -> None:
    data = tagging_data(tmp_path / "data")
    more = ("--adapter", "lora:1+head")
    assert train(tiny_base, data, tmp_path / "adapter", *more).exit_code == 0
    (tmp_path / "a.conll").write_text(TAGS)
    words = ("--adapter", tmp_path / "adapter", "--file", tmp_path / "a.conll")
    done = client("predict", tiny_base, *words, "--out", tmp_path / out)
    assert done.exit_code == 0, done
    answers = (tmp_path / out).read_text()
    if out == "out.jsonl":
        rows = list(map(json.loads, answers.splitlines()))
        assert [row.get("left_out", "") for row in rows] == ["", "unreadable", ""]
        assert rows[1]["tags"] is None
    else:
        first, second, third = answers.partition("\n")[2].rstrip().split("\n\n")
        assert first.startswith("Naloxone\t") and third.startswith("heart\t")
        assert second == "# left out: unreadable"
