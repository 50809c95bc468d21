"""Exports of annotation tools, given to the commands as they are."""

import csv
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import client, refused, train
from tests.edge_client.commands.kinds.texts import TAGGING, last_object, tagging_data
from tests.edge_client.formats.annotation.files import LABELLED, TAGGED, A, B, C

TOPICS = (
    'name = "topics"\nlabels = ["delivery", "bill"]\npatterns = ["[MASK] : {text}"]\n'
    '[verbalizer]\ndelivery = "parcel"\nbill = "money"\n'
)
STUDIO = '{"id": 1, "data": {"image": "/data/a.jpg"}, "annotations": [{"result": [%s]}]}'
BOX = (
    '{"from_name": "box", "to_name": "img", "type": "rectanglelabels", '
    '"value": {"x": 1, "y": 2, "width": 3, "height": 4, "rectanglelabels": ["cat"]}}'
)


def written(folder: Path, name: str, body: str) -> Path:
    (folder / "task.toml").write_text(TOPICS)
    path = folder / name
    path.write_text(body, newline="")
    return path


@pytest.mark.few(4)
@pytest.mark.parametrize("name", LABELLED)
def test_evaluate_counts_what_is_read_and_what_is_left_out(
    tiny_base: Base, tmp_path: Path, name: str
) -> None:
    said, body = LABELLED[name]
    path = written(tmp_path, name, body)
    done = client(
        "evaluate", tiny_base, "--data", path, "--task", path.parent / "task.toml", "--json"
    )
    found = last_object(done)
    rows = found["rows"]
    assert found["texts"] == rows["read"] == 1
    assert rows["rows"] == 1 + sum(rows["left_out"].values()) == 1 + len(found["left_out"])
    assert "ambiguous" in rows["left_out"] and said in done.stderr
    assert not any(text in done.output for text in (A, "again", "note"))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", LABELLED)
def test_predict_answers_every_row_whatever_was_said_of_it(
    tiny_base: Base, tmp_path: Path, name: str
) -> None:
    path, out = written(tmp_path, name, LABELLED[name][1]), tmp_path / "out.csv"
    words = ("--file", path, "--task", path.parent / "task.toml", "--out", out, "--json")
    told = last_object(client("predict", tiny_base, *words))
    with out.open(newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert told["rows"]["rows"] == told["texts"] == len(texts)
    assert list(dict.fromkeys(texts)) == [A, B, C]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", TAGGED)
def test_training_takes_spans_as_tags_of_words(tiny_base: Base, tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, TAGGED[name])
    (tmp_path / "task.toml").write_text(TAGGING)
    more = ("--task", tmp_path / "task.toml", "--adapter", "lora:1+head", "--json")
    assert last_object(train(tiny_base, path, tmp_path / "out", *more))["num_examples"] == 1


def test_a_folder_of_brat_is_a_part_of_a_data_folder(
    tiny_base: Base, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tagging_data(tmp_path / "data")
    (data / "labelled.conll").unlink()
    (data / "labelled").mkdir()
    (data / "labelled" / "a.txt").write_text("Naloxone helps.\nNo heart failure.\n")
    (data / "labelled" / "a.ann").write_text(
        "T1\tChemical 0 8\tNaloxone\nT2\tDisease 19 32\theart failure\nR1\tOf Arg1:T1 Arg2:T2\n"
    )
    done = train(tiny_base, data, tmp_path / "out", "--adapter", "lora:1+head", "--json")
    assert last_object(done)["num_examples"] == 2
    assert "brat's standoff, its relations left aside" in caplog.text


def test_another_type_of_task_is_one_line_with_its_field(tiny_base: Base, tmp_path: Path) -> None:
    path = written(tmp_path, "image.json", f"[{STUDIO % BOX}]")
    for words in (("evaluate", "--data", path), ("predict", "--file", path)):
        command, *rest = words
        said = refused(client(command, tiny_base, *rest, "--task", tmp_path / "task.toml"))
        assert "`box` is of type rectanglelabels" in said and "are read here" in said


def test_options_say_which_field_is_the_text_and_which_control_the_label(
    tiny_base: Base, tmp_path: Path
) -> None:
    rows = LABELLED["studio.csv"][1].replace('"text"', '"review"').partition('"","",3')[0]
    path = written(tmp_path, "studio.csv", rows)
    words = ("--data", path, "--task", tmp_path / "task.toml")
    assert "say it by --label-column" in refused(client("evaluate", tiny_base, *words))
    columns = ("--text-column", "review", "--label-column", "topic", "--json")
    assert last_object(client("evaluate", tiny_base, *words, *columns))["texts"] == 1
