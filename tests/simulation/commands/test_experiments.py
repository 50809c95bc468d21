import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from tests.breadth import first_fast
from tests.processes import ENTER, memory_group

EXPERIMENT = """
dataset = "folder:{folder}"
adapter = "lora:2"
engine = "onnx"
dtype = "auto"
rounds = 1

[deal]
clients = 2

[training]
epochs = 1
batch = 2
tokens = 32
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An experiment over a few texts of one's own."""
    for part in ("train", "test"):
        rows = [f"{part} text {number},{('yes', 'no')[number % 2]}" for number in range(12)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *rows, ""]))
    task = 'labels = ["yes", "no"]\npatterns = ["{text} ? [MASK] ."]\n'
    (tmp_path / "task.toml").write_text(task)
    (tmp_path / "mine.toml").write_text(EXPERIMENT.format(folder=tmp_path))
    return tmp_path / "mine.toml"


@pytest.mark.slow
@pytest.mark.parametrize("jobs", first_fast(["1", "2"]))
def test_too_little_memory_for_any_plan_is_one_line(file: Path, jobs: str) -> None:
    line = [sys.executable, "-m", "smidgen", "simulate", "run", str(file), "--json"]
    more = ["--seeds", "2", "--jobs", jobs, "--out", str(file.parent / "out")]
    with memory_group(160 << 20) as group:
        done = subprocess.run([*ENTER, str(group), *line, *more], capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert said.startswith("smidgen simulate: ") and "below the smallest plan" in said


SIGNS = """
import numpy as np
class Signs:
    def mean(self, updates, adapter):
        votes = {name: np.zeros(one.shape) for name, one in adapter.items()}
        for update in updates:
            for name, delta in update.delta.items():
                votes[name] += np.sign(delta)
        return {name: 0.001 * np.sign(vote) for name, vote in votes.items()}
class Broken:
    def mean(self, updates, adapter):
        return {name: one / len(list(updates)) for name, one in adapter.items() if "A" in name}
MEANS = {"signs": Signs, "broken": Broken}
"""


@pytest.mark.slow
def test_a_folder_s_mean_takes_part_in_experiments_in_processes_too(file: Path) -> None:
    ideas = file.parent / "ideas"
    ideas.mkdir(mode=0o755)
    (ideas / "signs.py").write_text(SIGNS)
    (ideas / "signs.py").chmod(0o644)
    line = [sys.executable, "-m", "smidgen", "simulate", "run", str(file)]

    def run(mean: str, *more: str) -> "subprocess.CompletedProcess[str]":
        said = f'{EXPERIMENT.format(folder=file.parent)}\n[learning]\nmean = "{mean}"\n'
        file.write_text(said)
        where = ["--out", str(file.parent / "out")]
        return subprocess.run([*line, *where, *more], capture_output=True, text=True)

    refused = run("signs")
    assert refused.returncode == 2 and "'signs' is not known" in refused.stderr.splitlines()[-1]
    done = run("signs", "--plugins", str(ideas), "--seeds", "2", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    broken = run("broken", "--plugins", str(ideas), "--seeds", "1")
    last = broken.stderr.splitlines()[-1]
    assert broken.returncode == 1 and "mean 'broken' of" in last and "other tensors" in last
