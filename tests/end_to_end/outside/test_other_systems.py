"""The client and the simulator as they run on macOS and Windows, as far as a Linux can show it.

Modules and calls that those systems lack are not there, and neither is /proc or /sys: in a mount
namespace of its own (as root) an empty folder covers each. psutil, which has a part for each
system, still finds the real /proc. Real wheels of those systems are not tried.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from tests.edge_client.commands.alone import write_data
from tests.end_to_end.conftest import Scene
from tests.jetson.wheelhouses import as_root
from tests.simulation.commands.test_experiments import EXPERIMENT

# Windows has none of these; macOS lacks those of the processor's cores and of room on the disk.
HIDDEN = """
import os, signal, sys

import psutil

psutil.PROCFS_PATH = os.environ["PROC"]

for name in ("fcntl", "grp", "pwd", "resource"):
    sys.modules[name] = None
for name in (
    *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "geteuid", "getuid", "posix_fadvise"),
    *("posix_fallocate", "sched_getaffinity", "sysconf"),
):
    delattr(os, name)
del signal.SIGALRM, signal.setitimer
"""
BARE = """
mount --rbind /proc "$PROC" && mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec "$@"
"""
Run = Callable[..., str]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Run:
    allowed = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /sys"]
    if subprocess.run(allowed, check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here, as in a container without privileges")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDDEN)
    path = f"{tmp_path / 'hidden'}{os.pathsep}{Path(__file__).parents[3]}"

    def run(*words: object) -> str:
        line = ["unshare", "-m", "sh", "-c", BARE, "sh", sys.executable, "-m", "smidgen"]
        own = {"PYTHONPATH": path, "HOME": str(tmp_path), "PROC": str(tmp_path / "proc")}
        done = subprocess.run(
            [*line, *map(str, words)], capture_output=True, text=True, env=os.environ | own
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@as_root
def test_a_device_trains_and_answers(elsewhere: Run, tiny_base: Base, tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "mine"), tmp_path / "adapter"
    base = ("--base", tiny_base.folder, "--engine", "onnx")
    short = ("--tokens", 32, "--epochs", 1)
    elsewhere("client", "train", "--data", data, "--out", out, *short, *base)
    said = elsewhere("client", "predict", "--adapter", out, "rain at nine", "--json", *base)
    assert json.loads(said.splitlines()[-1])["labels"]


@as_root
def test_a_device_serves_a_run(elsewhere: Run, scene: Scene) -> None:
    scene.create(1, 1, 1)
    where = ("--coordinator", scene.serve(), "--token", scene.token, "--data", scene.data("x"))
    more = ("--base", scene.base.folder, "--until", "finished")
    said = elsewhere("client", "run", *where, *more, "--state", scene.folder / "state", "--json")
    assert Path(json.loads(said.splitlines()[-1])["adapter"]).is_dir()


@as_root
@pytest.mark.slow
def test_the_simulator_runs_an_experiment(elsewhere: Run, tiny_base: Base, tmp_path: Path) -> None:
    for part in ("train", "test"):
        rows = [f"{part} text {number},{('yes', 'no')[number % 2]}" for number in range(12)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *rows, ""]))
    task = 'labels = ["yes", "no"]\npatterns = ["{text} ? [MASK] ."]\n'
    (tmp_path / "task.toml").write_text(task)
    base = f'base = "{tiny_base.folder}"\n'
    (tmp_path / "mine.toml").write_text(base + EXPERIMENT.format(folder=tmp_path))
    elsewhere("simulate", "run", tmp_path / "mine.toml", "--out", tmp_path / "out")
    assert list((tmp_path / "out").rglob("rows.jsonl"))
