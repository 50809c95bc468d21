import json
from pathlib import Path

import pytest

from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.labelling.label_journal import FileNotes, Read
from smidgen.edge_client.labelling.pseudo_labels import Reading, text_id
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import ANY
from tests.command_line import Done, smidgen

TEXTS = {"rain at nine": ("weather", 0.97), "a cake": ("family", 0.6), "storm": ("weather", 0.9)}
IDS = {text: text_id(Example(text)) for text in TEXTS}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = ClientState(tmp_path / "state")
    readings = {
        IDS[text]: Reading(label, confidence, 3, "0123456789abcdef" * 4, 2)
        for text, (label, confidence) in TEXTS.items()
    }
    FileNotes(folder.labels("r1")).add(Read(readings, 6))
    return folder.folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "unlabelled.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    return folder


def labels(*arguments: object) -> Done:
    return smidgen("client", "labels", *map(str, arguments))


def refused(*arguments: object) -> str:
    done = labels(*arguments)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    return done.stderr


def test_the_surest_reading_comes_first_with_its_text(state: Path, data: Path) -> None:
    _, _, first, *_, last = labels("--state", state, "--data", data).stdout.splitlines()
    values = [IDS["rain at nine"], "weather", "0.970", "3", "01234567", "2", "rain at nine"]
    assert first.split(maxsplit=6) == values
    assert last == "run r1: 3 texts read, 0 taken back"


def test_without_the_texts_readings_go_by_id(state: Path) -> None:
    found = json.loads(labels("--state", state, "--json").stdout)
    assert [row["id"] for row in found["labels"]] == [
        IDS[text] for text in ("rain at nine", "storm", "a cake")
    ]
    assert found["run"] == "r1" and "text" not in found["labels"][0]


def test_a_label_that_is_taken_back_stays_away(state: Path) -> None:
    taken = json.loads(labels("--state", state, "--revoke", IDS["storm"], "--json").stdout)
    again = json.loads(labels("--state", state, "--json").stdout)
    assert taken == again and again["revoked"] == [IDS["storm"]]
    assert IDS["storm"] not in {row["id"] for row in again["labels"]}
    assert "no text of this id was read" in refused("--state", state, "--revoke", IDS["storm"])


def test_what_is_written_is_a_labelled_file_of_the_surest(state: Path, data: Path) -> None:
    out = data / "labels.jsonl"
    done = labels("--state", state, "--data", data, "--out", out, "--json")
    assert json.loads(done.stdout)["written"] == 2
    expected = [Example("rain at nine", "", "weather"), Example("storm", "", "weather")]
    assert read_file(out, ANY, labelled=True) == expected
    assert json.loads(out.read_text().splitlines()[0]) == {
        "text": "rain at nine",
        "label": "weather",
        "confidence": 0.97,
        "round": 3,
    }


def test_the_users_own_label_wins(state: Path, data: Path) -> None:
    (data / "labelled.csv").write_text("text,label\nstorm,family\n")
    out = data / "labels.jsonl"
    labels("--state", state, "--data", data, "--out", out)
    assert [example.text for example in read_file(out, ANY, labelled=True)] == ["rain at nine"]


def test_the_newest_run_is_shown_unless_one_is_named(state: Path) -> None:
    FileNotes(ClientState(state).labels("r2")).add(Read({}, 0))
    assert "run r2: 0 texts" in labels("--state", state).stdout
    assert "run r1: 3 texts" in labels("--state", state, "--run", "r1").stdout
    assert "--run r3 is not one of r1, r2" in refused("--state", state, "--run", "r3")


def test_wrong_use_is_one_line(state: Path, tmp_path: Path) -> None:
    assert "give --data" in refused("--state", state, "--out", tmp_path / "o.jsonl")
    assert "holds no readings" in refused("--state", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with ClientState(state).locked():
        assert "another client runs" in refused("--state", state)


def test_looking_deletes_nothing_however_many_runs_there_were(state: Path) -> None:
    for place in range(20):
        FileNotes(ClientState(state).labels(f"later-{place}")).add(Read({}, 0))
    (state / ".adapter.part-17").mkdir()
    assert "run r1: 3 texts" in labels("--state", state, "--run", "r1").stdout
    assert len(list(state.glob("labels-*"))) == 21 and (state / ".adapter.part-17").exists()


def test_a_text_cannot_write_to_the_terminal(state: Path, data: Path) -> None:
    hidden = Example("red \x1b[31m" + "x" * 99)
    notes = FileNotes(ClientState(state).labels("r1"))
    notes.add(Read({text_id(hidden): Reading("weather", 0.99, 1, "0" * 64, 1)}, 1))
    (data / "unlabelled.csv").write_text(f"text\n{hidden.text}\n")
    shown = labels("--state", state, "--data", data).stdout.splitlines()[2]
    assert shown.endswith("...") and "red ?[31mxx" in shown


def test_a_place_that_cannot_be_written_is_told_before_anything_is_taken_back(
    state: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "o.jsonl", tmp_path / "o.csv"):
        words = ("--state", state, "--data", data, "--out", out, "--revoke", IDS["storm"])
        assert f"--out {out}" in refused(*words)
    assert "0 taken back" in labels("--state", state).stdout


@pytest.mark.parametrize(("tool", "ending"), [("label-studio", "json"), ("doccano", "jsonl")])
def test_the_surest_are_written_for_a_tool_where_people_correct_them(
    state: Path, data: Path, tmp_path: Path, tool: str, ending: str
) -> None:
    out = tmp_path / f"labels.{ending}"
    words = ("--state", state, "--data", data, "--write", tool, "--out", out)
    assert json.loads(labels(*words, "--json").stdout)["written"] == 2
    assert out.stat().st_mode & 0o077 == 0
    body = out.read_text()
    rows = json.loads(body) if ending == "json" else list(map(json.loads, body.splitlines()))
    found = []
    for row in rows:
        given = row["predictions"][0] if ending == "json" else row
        label = given["result"][0]["value"]["choices"] if ending == "json" else row["label"]
        found.append((row.get("data", row)["text"], label, given["score"]))
    assert found == [("rain at nine", ["weather"], 0.97), ("storm", ["weather"], 0.9)]
    assert labels(*words).exit_code == 0  # a file of ours is replaced


def test_a_tool_is_one_that_is_known_and_needs_a_file(state: Path, data: Path) -> None:
    words = ("--state", state, "--data", data)
    assert "give --out too" in refused(*words, "--write", "doccano")
    assert "one of label-studio, doccano" in refused(*words, "--write", "brat", "--out", data / "x")
