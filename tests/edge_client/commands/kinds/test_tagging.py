"""Texts whose words are tagged, from training to files of entities."""

from pathlib import Path

import pytest

import smidgen
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import read_file
from tests.edge_client.commands.alone import client, refused, train
from tests.edge_client.commands.kinds.texts import CONLL, last_object, objects, tagging_data

LONG = " ".join(["no heart failure , lithium carbonate ."] * 30)
TASK = Task("drugs", ("Chemical", "Disease"), kind="tagging")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tagging_data(tmp_path_factory.mktemp("tagging") / "data")


@pytest.fixture(scope="module")
def adapter(tiny_base: Base, data: Path) -> Path:
    more = ("--adapter", "lora:4@q,v,up+head", "--lr", 0.02, "--epochs", 60)
    done = train(tiny_base, data, data.parent / "out", *more)
    assert done.exit_code == 0, done.output
    return data.parent / "out"


def test_entities_are_shown_in_their_text(tiny_base: Base, adapter: Path) -> None:
    done = client("predict", tiny_base, "--adapter", adapter, "Naloxone reverses hypotension")
    line = done.stdout.splitlines()[-1]
    assert line.startswith("[Naloxone | Chemical ") and "] reverses [hypotension | " in line


def test_json_has_words_tags_and_entities_with_their_places(tiny_base: Base, adapter: Path) -> None:
    text = "no (heart failure)"
    done = client("predict", tiny_base, "--adapter", adapter, text, "--json")
    (found,) = last_object(done)["answers"]
    assert found["text"] == text and found["tokens"] == ["no", "(", "heart", "failure", ")"]
    assert len(found["tags"]) == 5
    for one in found["entities"]:
        assert text[one["start_character"] : one["end_character"]] == one["text"]
        assert found["tags"][one["start"]] == f"B-{one['type']}" and 0 < one["probability"] <= 1


def test_no_word_of_a_long_text_is_without_a_tag(tiny_base: Base, adapter: Path) -> None:
    done = client("predict", tiny_base, "--adapter", adapter, LONG, "--json")
    (found,) = last_object(done)["answers"]
    assert len(found["tags"]) == len(found["tokens"]) == 7 * 30
    assert max(one["end"] for one in found["entities"]) > 200


@pytest.mark.parametrize("ending", ["jsonl", "conll"])
def test_a_file_of_answers_is_a_file_of_tagged_words(
    tiny_base: Base, adapter: Path, tmp_path: Path, ending: str
) -> None:
    (tmp_path / "in.txt").write_text("Naloxone reverses hypotension\nno heart failure\n")
    out = tmp_path / f"out.{ending}"
    words = ("--adapter", adapter, "--file", tmp_path / "in.txt", "--out", out)
    done = client("predict", tiny_base, *words, "--json")
    told, read = last_object(done), read_file(out, TASK, labelled=True)
    assert (told["texts"], set(told["entities"])) == (2, {"Chemical", "Disease"})
    assert [example.text for example in read] == [
        "Naloxone reverses hypotension",
        "no heart failure",
    ]
    count = sum(tag.startswith("B-") for example in read for tag in example.tags)
    assert count == sum(told["entities"].values())
    again = client("predict", tiny_base, *words[:-2], "--out", out)
    assert again.exit_code == 0 and "2 texts tagged" in again.stdout


def test_words_that_a_file_tells_apart_stay_as_they_are(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.conll").write_text("heart-failure\tB-Other\nno\tO\n")
    words = ("--adapter", adapter, "--file", tmp_path / "in.conll", "--json")
    (found,) = last_object(client("predict", tiny_base, *words))["answers"]
    assert found["tokens"] == ["heart-failure", "no"]


@pytest.mark.parametrize(
    ("ending", "body"),
    [
        ("conll", "heart-failure NN I-Other\nno\n#\n"),
        ("iob", "heart-failure\tS-Other\nno\t1\n#\n"),
        ("jsonl", '{"tokens": ["heart-failure", "no", "#"], "tags": [1, null]}\n'),
        ("jsonl", '{"tokens": ["heart-failure", "no", "#"]}\n'),
        ("jsonl", '{"tokens": []}\n{"tokens": ["heart-failure", "no", "#"], "tags": []}\n'),
    ],
)
def test_tags_of_a_file_that_is_tagged_afresh_are_not_looked_at(
    tiny_base: Base, adapter: Path, tmp_path: Path, ending: str, body: str
) -> None:
    file = tmp_path / f"in.{ending}"
    file.write_text(body)
    done = client("predict", tiny_base, "--adapter", adapter, "--file", file, "--json")
    (found,) = last_object(done)["answers"]
    assert found["tokens"] == ["heart-failure", "no", "#"] and len(found["tags"]) == 3


def test_what_somebody_tagged_by_hand_is_not_replaced(
    tiny_base: Base, adapter: Path, tmp_path: Path
) -> None:
    own = '{"tokens": ["naloxone"], "tags": ["B-Chemical"]}\n'
    (tmp_path / "mine.jsonl").write_text(own)
    ask = ("predict", tiny_base, "rain " * 2000, "--adapter", adapter, "--out")
    assert "was not written by this command" in refused(client(*ask, tmp_path / "mine.jsonl"))
    assert (tmp_path / "mine.jsonl").read_text() == own
    for _ in range(2):  # its own it replaces, however long the first text
        assert client(*ask, tmp_path / "out.jsonl").exit_code == 0


def test_an_evaluation_tells_every_f1_and_each_type(
    tiny_base: Base, data: Path, adapter: Path
) -> None:
    done = client("evaluate", tiny_base, "--data", data, "--adapter", adapter)
    assert "type" in done.stdout and "Chemical" in done.stdout and "strict" in done.stdout
    found = last_object(
        client("evaluate", tiny_base, "--data", data, "--adapter", adapter, "--json")
    )
    assert (found["texts"], found["words"]) == (3, 10)
    assert set(found["f1"]) == {"strict", "typed", "partial", "macro", "weighted"}
    assert found["f1"]["strict"] <= found["f1"]["typed"] and found["f1"]["strict"] > 0.5
    assert [one["count"] for one in found["types"]] == [2, 2]


def test_python_says_what_the_command_says(tiny_base: Base, data: Path, adapter: Path) -> None:
    known = {"base": tiny_base.folder, "engine": "onnx"}
    (told,) = smidgen.tag([LONG], adapter, **known)  # type: ignore[arg-type]
    done = client("predict", tiny_base, "--adapter", adapter, LONG, "--json")
    assert list(told.tags) == last_object(done)["answers"][0]["tags"]
    scores = smidgen.evaluate(data, adapter, **known)  # type: ignore[arg-type]
    done = client("evaluate", tiny_base, "--data", data, "--adapter", adapter, "--json")
    assert scores.entities is not None
    assert scores.entities.strict == last_object(done)["f1"]["strict"]


def test_each_words_answer_is_written_beside_its_own(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    words = ("--data", data, "--adapter", adapter, "--out")
    client("evaluate", tiny_base, *words, tmp_path / "out.jsonl")
    rows = objects(tmp_path / "out.jsonl")
    assert [row["tags"][0] for row in rows] == ["B-Chemical", "B-Chemical", "O"]
    client("evaluate", tiny_base, *words, tmp_path / "out.conll")
    lines = (tmp_path / "out.conll").read_text().splitlines()[1:]
    columns = [line.split("\t") for line in lines if line]
    assert [(word, gold) for word, gold, _ in columns] == [
        tuple(line.split("\t")) for line in CONLL.splitlines() if line
    ]
    assert [read for *_, read in columns] == [tag for row in rows for tag in row["read_as"]]


def test_what_tags_have_none_of_is_refused_in_one_line(
    tiny_base: Base, data: Path, adapter: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("rain\n" * 9)
    ask = ("predict", tiny_base, "rain", "--adapter", adapter)
    assert "--prior is for labels" in refused(client(*ask, "--prior", tmp_path / "in.txt"))
    assert "--top says how many words" in refused(client(*ask, "--top", 3))
    said = refused(client(*ask, "--out", tmp_path / "out.csv"))
    assert "a name that ends in .jsonl or .conll is expected" in said
    alone = client("predict", tiny_base, "rain", "--task", data / "task.toml")
    assert "tags words, which the base alone cannot; give --adapter" in refused(alone)
    said = refused(client("patterns", tiny_base, "--data", data))
    assert "is asked by no pattern" in said
    said = refused(train(tiny_base, data, tmp_path / "out", "--adapter", "lora:2"))
    assert "tags words, which needs a head; lora:2@q,v+head does" in said


def test_in_python_the_right_function_is_named(tiny_base: Base, adapter: Path) -> None:
    known = {"base": tiny_base.folder, "engine": "onnx"}
    with pytest.raises(smidgen.WrongInput, match=r"of kind tagging: take smidgen\.tag"):
        smidgen.predict(["rain"], adapter, **known)  # type: ignore[arg-type]
    with pytest.raises(smidgen.WrongInput, match="text 1: a text is expected, came tuple"):
        smidgen.tag([("a", "b")], adapter, **known)  # type: ignore[list-item, arg-type]
