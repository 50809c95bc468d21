"""Answers of `client predict --out` line up with a file's rows, those left out included."""

import csv
import json
from pathlib import Path

import pytest

from edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, train, write_data

BODIES = {
    "a.csv": 'id,text\n0,rain\n1,"open\n2,\n3,"two\nlines"\n4,storm,more\n5,door\n',
    "a.jsonl": '{"id": 0, "text": "rain"}\n{"id": 1, "text": ["x"]}\n{"id": 2, "text": ""}\n'
    '{"id": 3, "text": "two\\nlines"}\n{"id": 4, "te\n{"id": 5, "text": "door"}\n',
}


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    assert train(tiny_base, write_data(folder / "data"), folder / "out").exit_code == 0
    return folder / "out"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("name", BODIES)
def test_a_row_that_is_left_out_is_empty_at_its_place(
    tiny_base: Base, adapter: Path, tmp_path: Path, name: str, ending: str
) -> None:
    (tmp_path / name).write_text(BODIES[name])
    out = tmp_path / f"out.{ending}"
    told = client(
        *("predict", tiny_base, "--adapter", adapter, "--file", tmp_path / name),
        *("--out", out, "--json"),
    )
    said = json.loads(told.stdout.splitlines()[-1])
    with out.open(newline="") as file:
        rows = [*csv.DictReader(file)] if ending == "csv" else [json.loads(one) for one in file]
    assert len(rows) == said["rows"]["rows"] == 6
    assert [bool(row["label"]) for row in rows] == [True, False, False, True, False, True]
    assert said["rows"]["read"] == said["texts"] == 3 and len(said["left_out"]) == 3
    assert [row["text"] for row in rows if row["label"]] == ["rain", "two\nlines", "door"]
