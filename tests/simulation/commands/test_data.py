import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.task import Task, read_task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.simulation.commands.data import summary, write_dataset
from smidgen.simulation.datasets.catalogue import read_dataset, read_local
from smidgen.simulation.datasets.dataset import DataSet
from tests.command_line import smidgen

TASK = Task("pets", ("cat", "dog"), ("a [MASK] : {text}",), {"cat": "cat", "dog": "dog"})
SET = DataSet(
    "pets",
    TASK,
    (Example('purr, "it" said\nso', "", "cat", "eng"), Example("wuff", "", "dog", "hau")),
    (Example("miau", "", "cat", "eng"),),
    "folder pets",
    "cc-by-4.0",
    "0" * 64,
    ("made up",),
)


def own_files(folder: Path) -> list[str]:
    (folder / "all.csv").write_text("text,label\n" + "".join(f"t{n},cat\n" for n in range(40)))
    (folder / "task.toml").write_text(task_toml(TASK))
    return ["--train", str(folder / "all.csv"), "--task", str(folder / "task.toml")]


def test_a_set_that_was_written_reads_back(tmp_path: Path) -> None:
    write_dataset(tmp_path, SET)
    task = read_task(tmp_path / "task.toml")
    again = read_local(tmp_path / "train.csv", tmp_path / "test.csv", task)
    assert (again.task, again.train, again.test) == (SET.task, SET.train, SET.test)
    assert again.licence == "cc-by-4.0"


def test_a_copy_is_a_data_set_of_ones_own(tmp_path: Path) -> None:
    write_dataset(tmp_path / "mine", SET)
    again = read_dataset(f"folder:{tmp_path}/mine")
    assert (again.name, again.task, again.train, again.test) == (
        *(SET.name, SET.task, SET.train, SET.test),
    )
    assert (again.origin, again.licence) == ("folder mine", "cc-by-4.0")
    done = smidgen("simulate", "data", f"folder:{tmp_path}/mine", "--languages", "eng", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["languages"] == {"train": {"eng": 1}, "test": {"eng": 1}}


@pytest.mark.slow
def test_a_terminal_of_other_letters_gets_json(tmp_path: Path) -> None:
    write_dataset(tmp_path / "mine", replace(SET, licence="d\u00e9j\u00e0 \u65e5"))
    command = [sys.executable, "-m", "smidgen", "simulate", "data", f"folder:{tmp_path}/mine"]
    asked = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "--json"], capture_output=True, env=asked, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["licence"] == "d\u00e9j\u00e0 \u65e5"


def test_equal_sets_write_equal_bytes(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        write_dataset(tmp_path / folder, SET)
    for path in (tmp_path / "x").iterdir():
        assert path.read_bytes() == (tmp_path / "y" / path.name).read_bytes()


def test_the_summary_counts_labels_and_languages() -> None:
    found = summary(SET)
    assert found["labels"] == {"train": {"cat": 1, "dog": 1}, "test": {"cat": 1, "dog": 0}}
    assert found["languages"] == {"train": {"eng": 1, "hau": 1}, "test": {"eng": 1}}


def test_tagged_sets_are_counted_by_entities_and_not_written_as_texts_with_labels(
    tmp_path: Path,
) -> None:
    text = Example("an aspirin", language="en", words=("an", "aspirin"), tags=("O", "B-Drug"))
    task = Task("drugs", ("Drug",), kind="tagging")
    tagged = DataSet("drugs", task, (text, text), (text,), "here", "none", "0" * 64, ())
    assert summary(tagged)["labels"] == {"train": {"Drug": 2}, "test": {"Drug": 1}}
    with pytest.raises(DataError, match="drugs is of kind tagging; leave --out out"):
        write_dataset(tmp_path, tagged)


def test_own_files_are_shown_and_json_comes_last(tmp_path: Path) -> None:
    done = smidgen("simulate", "data", "pets-2", *own_files(tmp_path), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["name"], found["origin"]) == ("pets-2", "file all.csv")
    assert sum(part["cat"] for part in found["labels"].values()) == 40
    assert found["sha256"] in done.stdout.splitlines()[-5] or "sha256" in done.stdout


def test_a_copy_is_written_where_asked(tmp_path: Path) -> None:
    done = smidgen("simulate", "data", *own_files(tmp_path), "--out", str(tmp_path / "copy"))
    assert done.exit_code == 0
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {".smidgen-data", "train.csv", "test.csv", "task.toml", "README.md"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no data set 'nope'"),
        (["--train", "x.csv"], "--train needs --task FILE"),
        (["ag_news", "--data", "nowhere"], "no folder ag_news in nowhere"),
        (["--train", "x.csv", "--task", "none.toml"], "no task file at none.toml"),
        (["ag_news", "--task", "t.toml"], "--task has no effect without --train FILE or hub:"),
        (["folder:x", "--task", "t.toml"], "--task has no effect without --train FILE or hub:"),
        (["ag_news", "--text", "title"], "--text has no effect without hub:OWNER/NAME and --task"),
        (["hub:facebook/xnli", "--config", "en"], "--config has no effect without hub:OWNER/NAME"),
        (["ag_news", "--test", "t.csv"], "--test has no effect without --train FILE; leave it out"),
        (["--train", "x.csv", "--languages", "en"], "--languages has no effect with --train"),
        (["folder:x", "--data", "y"], "--data has no effect with a data set that is not in"),
    ],
)
def test_wrong_use_ends_in_one_line(arguments: list[str], message: str) -> None:
    done = smidgen("simulate", "data", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_set_known_on_the_hub_keeps_its_own_task(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(task_toml(TASK))
    done = smidgen("simulate", "data", "hub:facebook/xnli", "--task", str(tmp_path / "task.toml"))
    assert done.exit_code == 2 and "leave --task out" in done.stderr


def test_a_task_of_one_label_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('labels = ["x"]\npatterns = ["[MASK] {text}"]\n')
    with pytest.raises(TaskError):
        read_task(tmp_path / "task.toml")
    done = smidgen("simulate", "data", "--train", "x.csv", "--task", str(tmp_path / "task.toml"))
    assert done.exit_code == 2
