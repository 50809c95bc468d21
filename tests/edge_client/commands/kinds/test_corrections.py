"""Answers written as annotation tools import them, to be corrected there."""

import json
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, refused, train
from tests.edge_client.commands.kinds.texts import MASKED, last_object, objects, tagging_data

TEXTS = ["Naloxone reverses hypotension", "no 📉 (heart failure)"]
TOPICS = (
    'name = "topics"\nlabels = ["sports", "bill"]\npatterns = ["[MASK] : {text}"]\n'
    '[verbalizer]\nsports = "sports"\nbill = "money"\n'
)


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tagging_data(tmp_path_factory.mktemp("corrections") / "data")
    more = ("--adapter", "lora:4@q,v,up+head", "--lr", 0.02, "--epochs", 60)
    assert train(tiny_base, data, data.parent / "out", *more).exit_code == 0
    return data.parent / "out"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [{"id": f"n-{number}", "text": text} for number, text in enumerate(TEXTS)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tags_become_spans_of_the_texts_for_both_tools(
    tiny_base: Base, adapter: Path, file: Path, tmp_path: Path
) -> None:
    words = ("--adapter", adapter, "--file", file)
    answers = last_object(client("predict", tiny_base, "--adapter", adapter, *TEXTS, "--json"))
    expected = [
        [[one["start_character"], one["end_character"], one["type"]] for one in answer["entities"]]
        for answer in answers["answers"]
    ]
    assert any(expected)
    tasks, rows = tmp_path / "tasks.json", tmp_path / "rows.jsonl"
    for out, tool in ((tasks, "label-studio"), (rows, "doccano")):
        done = client("predict", tiny_base, *words, "--write", tool, "--out", out)
        assert done.exit_code == 0 and "2 texts tagged" in done.stdout
    read = json.loads(tasks.read_text())
    assert [one["data"] for one in read] == [
        {"text": text, "id": f"n-{number}"} for number, text in enumerate(TEXTS)
    ]
    results = [[result["value"] for result in one["predictions"][0]["result"]] for one in read]
    for text, values in zip(TEXTS, results, strict=True):
        assert all(text[one["start"] : one["end"]] == one["text"] for one in values)
    found = [[[one["start"], one["end"], *one["labels"]] for one in values] for values in results]
    assert found == [row["label"] for row in objects(rows)] == expected


def test_labels_become_choices_with_their_confidence(
    tiny_base: Base, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "task.toml").write_text(TOPICS)
    words = ("--task", tmp_path / "task.toml", "--file", file)
    answers = last_object(client("predict", tiny_base, *words, "--json"))
    out = tmp_path / "tasks.json"
    for _ in range(2):  # a file of ours may be written again
        done = client("predict", tiny_base, *words, "--write", "label-studio", "--out", out)
        assert done.exit_code == 0, done.output
    given = [one["predictions"][0] for one in json.loads(out.read_text())]
    assert [one["score"] for one in given] == answers["confidences"]
    assert [one["result"][0]["value"]["choices"] for one in given] == [
        [label] for label in answers["labels"]
    ]


def test_what_cannot_be_written_is_refused_in_one_line(
    tiny_base: Base, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "task.toml").write_text(TOPICS)
    (tmp_path / "notes.toml").write_text(MASKED)
    (tmp_path / "mine.json").write_text("[]")

    def said(task: str, tool: str, *out: object) -> str:
        words = ("--task", tmp_path / task, "--file", file, "--write", tool)
        return refused(client("predict", tiny_base, *words, *out))

    assert "one of label-studio, doccano" in said("task.toml", "brat", "--out", tmp_path / "a.json")
    assert "give --out too" in said("task.toml", "doccano")
    assert "ends in .jsonl" in said("task.toml", "doccano", "--out", tmp_path / "a.json")
    mine = ("--out", tmp_path / "mine.json")
    assert "not written by this command" in said("task.toml", "label-studio", *mine)
    out = ("--out", tmp_path / "a.jsonl")
    assert "guesses are neither" in said("notes.toml", "doccano", *out)
