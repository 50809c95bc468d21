"""Flower's strategies behind a run's `mean` and `optimizer`, in Flower's own environment."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.flower.strategies import FlowerMean, FlowerOptimizer
from smidgen.edge_client.errors import WrongInput
from smidgen.profiling.instruments.environment import ROOT
from smidgen.profiling.peers import flwr

EXPERIMENT = """
name = "{name}"
dataset = "folder:{data}"
rounds = 3
evaluate_every = 1
engine = "onnx"
adapter = "lora:2@q,v"
{learning}
[deal]
clients = 4
labelled = 48
labelled_clients = 4

[training]
epochs = 1
tokens = 32
lr = 0.005
"""
PLUGIN = """
from smidgen.coordinator.flower.strategies import FlowerMean, FlowerOptimizer

MEANS, OPTIMIZERS = {"flwr": FlowerMean}, {"flwr": FlowerOptimizer}
"""


def in_its_environment(*arguments: object, cwd: Path = ROOT) -> str:
    if reason := flwr.missing():
        pytest.skip(f"flwr: {reason}")
    line = [str(flwr.environment() / "bin" / "python"), *map(str, arguments)]
    known = flwr.QUIET | {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=280, env=known, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_aggregates_otherwise_is_refused_without_flower_too() -> None:
    with pytest.raises(WrongInput, match="one of FedAvgM, FedAdagrad, FedAdam, FedYogi"):
        FlowerOptimizer("QFedAvg")


def test_without_flower_one_line_says_what_to_install() -> None:
    try:
        import flwr.serverapp  # noqa: F401
    except ImportError:
        with pytest.raises(WrongInput, match="pip install flwr"):
            FlowerMean("FedMedian")


def test_an_installed_smidgen_names_them() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for group, kind in (("means", FlowerMean), ("optimizers", FlowerOptimizer)):
        said = f'"smidgen.{group}"]\nflwr = "{kind.__module__}:{kind.__name__}"'
        assert said in project


@pytest.mark.slow
def test_a_mean_by_flower_is_ours_to_1e_6() -> None:
    found: dict[str, Any] = json.loads(in_its_environment(Path(__file__).with_name("compared.py")))
    print(found)
    assert set(found["means"]) == {"FedAvg", "FedMedian", "FedTrimmedAvg:beta=0.2"}
    assert all(apart < 1e-6 for apart in found["means"].values())
    assert all(apart < 1e-6 for apart in found["optimizers"].values())
    assert "FedXgbCyclic: one of FedAvg, FedMedian" in found["unknown"]
    assert "Krum with num_malicious" in found["setting"]
    assert "FedAdam with eta=abc" in found["value"]


@pytest.mark.slow
def test_a_simulation_whose_strategy_is_flower_s_ends_where_ours_does(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "flower.py").write_text(PLUGIN)
    data = tmp_path / "data"
    data.mkdir()
    (data / "task.toml").write_text((ROOT / "simulation/data/task.toml").read_text())
    rows = (ROOT / "simulation/data/hub_messages.csv").read_text().splitlines()[1:]
    for part in ("train", "test"):
        some = [row.split(",", 5) for row in rows if f",en,{part}," in row]
        lines = ["text,label", *(f"{row[5]},{row[4]}" for row in some[:96])]
        (data / f"{part}.csv").write_text("\n".join(lines) + "\n")
    learnings = {
        "ours": "",
        "flower": '[learning]\nmean = "flwr:FedAvg"\n',
        "adam": '[learning]\noptimizer = "flwr:FedAdam:eta=0.01"\n',
    }
    files = []
    for name, learning in learnings.items():
        files.append(tmp_path / f"{name}.toml")
        files[-1].write_text(EXPERIMENT.format(name=name, data=data, learning=learning))
    asked = ("--plugins", tmp_path / "plugins", "--seeds", 1, "--out", tmp_path / "out", "--json")
    line = ("-m", "smidgen", "simulate", "run", *files, *asked)
    told = json.loads(in_its_environment(*line, cwd=tmp_path).splitlines()[-1])
    scores = {cell["row"]: cell["accuracy"] for cell in told["cells"]}
    print(scores)
    assert abs(scores["flower"] - scores["ours"]) < 0.02
    assert set(scores) == set(learnings)
