"""Experiments from Python, with a data set of a few texts and a tiny base."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

import smidgen
from smidgen.edge_client.bases.base import Base
from tests.command_line import smidgen as command

EXPERIMENT = """
name = "mine"
dataset = "folder:{folder}"
base = "{base}"
adapter = "lora:2"
engine = "onnx"
rounds = 1
deal.clients = 2
training = {{ epochs = 1, batch = 4, tokens = 32 }}
"""


@pytest.fixture
def file(tiny_base: Base, tmp_path: Path) -> Path:
    for part in ("train", "test"):
        rows = [f"{part} rain {number},{('good', 'bad')[number % 2]}" for number in range(8)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *rows, ""]))
    task = 'labels = ["good", "bad"]\npatterns = ["{text} ? [MASK] ."]\n'
    (tmp_path / "task.toml").write_text(task)
    said = EXPERIMENT.format(folder=tmp_path, base=tiny_base.folder)
    (tmp_path / "mine.toml").write_text(said)
    return tmp_path / "mine.toml"


def test_a_file_and_its_object_and_the_command_give_one_result(file: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    out = tmp_path / "out"
    found = smidgen.simulate(file, out=out, seeds=2, tell=lambda *said: told.append(said))
    assert [(one.name, one.seed) for one in found] == [("mine", 0), ("mine", 1)]
    assert told[-1] == (4, 4, "done") and sorted(found[0].accuracy_by_round) == [0, 1]
    assert "rows" not in repr(found[0]) and found[0].bytes_up > 0
    done = command("simulate", "run", str(file), "--seeds", "2", "--out", str(out), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
    folders = sorted((out / "experiments").iterdir())
    again = smidgen.simulate([found[1].result.experiment], out=out)
    assert again == [found[1]] and sorted((out / "experiments").iterdir()) == folders
    assert len(folders) == 2  # the command ran none anew


def test_what_cannot_be_run_is_raised(file: Path, tmp_path: Path) -> None:
    experiment = smidgen.Experiment("none", "folder:nowhere")
    wrongs: list[dict[str, Any]] = [{"seeds": 0}, {"jobs": 0}, {}]
    for wrong in wrongs:
        with pytest.raises(smidgen.WrongInput):
            smidgen.simulate(replace(experiment, rounds=1), out=tmp_path / "out", **wrong)
    with pytest.raises(smidgen.WrongInput, match="no experiment at"):
        smidgen.simulate("nowhere.toml", out=tmp_path / "out")
