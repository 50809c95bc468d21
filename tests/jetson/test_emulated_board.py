"""The JetPack 4 wheelhouse on an emulated Cortex-A57: installed, trained with, in a round.

`make test-jetson` runs it: it fetches a Debian root and 160 MB of wheels, and takes nine minutes.
The emulated processor has a TX2's instructions; its C library and its kernel are others.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("packaging")

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.packing import pack_model
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import Scene
from tests.jetson import emulation
from tests.jetson.test_build_wheelhouse import index_or_skip, tool
from tests.jetson.wheelhouses import JETSON, as_root

STEPS = Path(__file__).parent / "five_steps.py"
MOST_ERROR = 1e-5  # |gradient - x86's| / |x86's|; 1.6e-6 was found
SITE = "/opt/smidgen/current/site"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    as_root,
    pytest.mark.skipif("SMIDGEN_EMULATE" not in os.environ, reason="`make test-jetson` runs it"),
]


def line(root: Path, *words: str | Path) -> list[str]:
    return [sys.executable, "-B", emulation.__file__, str(root), *map(str, words)]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)


def debian(folder: Path, *packages: str) -> Path:
    """A bare Debian 12 for arm64 with its Python: packages unpacked, none configured."""
    for name in ("debootstrap", "dpkg", emulation.QEMU):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    root = folder / "root"
    words = ["--foreign", "--arch=arm64", "--variant=minbase"]
    words += [f"--include={','.join(('python3', *packages))}", "bookworm"]
    if run("debootstrap", *words, str(root)).returncode:
        pytest.skip("no Debian mirror answers")
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        assert run("dpkg", "-x", str(package), str(root)).returncode == 0, package.name
        package.unlink()
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
    (root / "root").mkdir(exist_ok=True)
    if (done := run(*line(root, "/bin/true"))).returncode:
        pytest.skip(f"no arm64 program can be run here: {done.stderr.strip()}")
    return root


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root on which install.sh has put the release of JetPack 4, with torch."""
    index_or_skip()
    folder = tmp_path_factory.mktemp("board")
    root = debian(folder)
    house = root / "root/wheelhouse"
    built = tool("build_wheelhouse", "jetpack4", house, "--torch")
    assert built.returncode == 0, built.stderr
    shutil.copytree(JETSON, root / "root/jetson")
    done = run(*line(root, "bash", "/root/jetson/install.sh", "/root/wheelhouse"))
    assert done.returncode == 0, done.stderr
    return root


def test_the_release_starts(board: Path) -> None:
    done = run(*line(board, "smidgen", "--version"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_gradients_are_those_of_x86(board: Path, tiny_base: Base, engine: str) -> None:
    work = board / "root" / engine
    work.mkdir()
    pack_model(str(tiny_base.folder), 8, work / "pack")
    shutil.copy(STEPS, work)
    here, there = work / "x86.npz", work / "arm.npz"
    subprocess.run([sys.executable, STEPS, work / "pack", engine, here], check=True)
    inside = [f"/root/{engine}/{name}" for name in ("pack", "arm.npz", "x86.npz")]
    words = ["env", f"PYTHONPATH={SITE}", "python3", f"/root/{engine}/five_steps.py"]
    done = run(*line(board, *words, inside[0], engine, inside[1], inside[2]))
    assert done.returncode == 0, done.stderr
    with np.load(here) as ours, np.load(there) as theirs:
        names = [name for name in ours if name.startswith("gradient/")]
        errors = {name: error(ours[name], theirs[name]) for name in names}
    print(engine, max(errors.values()))
    assert len({name.split("/")[1] for name in errors}) == 5
    assert max(errors.values()) <= MOST_ERROR, max(errors, key=lambda name: errors[name])


def error(ours: np.ndarray, theirs: np.ndarray) -> float:
    norm = float(np.linalg.norm(ours))
    gap = float(np.linalg.norm(ours - theirs))
    return gap / norm if norm else gap


@pytest.fixture
def scene(tmp_path: Path, tiny_base: Base) -> Iterator[Scene]:
    with fleet(tmp_path / "logs", cores_each=1) as processes:
        yield Scene(tmp_path, tiny_base, processes)


def test_it_takes_part_in_rounds_with_x86(board: Path, scene: Scene) -> None:
    scene.create(2, 4, 2)
    url = scene.serve()
    for name, engine in (("a", "torch"), ("c", "onnx")):
        scene.client(name, url, "--engine", engine)
    base = board / "root/base"
    shutil.copytree(scene.base.folder, base)
    for name, engine in (("d", "onnx"), ("e", "torch")):
        shutil.copytree(scene.data(name), board / "root/data" / name)
        words = ["smidgen", "client", "run", "--coordinator", url, "--token", scene.token]
        words += ["--data", f"/root/data/{name}", "--state", f"/root/state/{name}"]
        words += ["--base", "/root/base", "--name", name, "--engine", engine]
        scene.fleet.own.start(name, line(board, *words, "--until", "finished"), {})
    scene.finish(within_s=900.0)
    status = scene.coordinator_json("status")
    assert len(status["accuracy_by_round"]) == 3
