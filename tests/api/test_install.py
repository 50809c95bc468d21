"""What is installed: one name, with all that commands read; and what the demo needs, alone."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
# `python -m build` is one more package; this is what it calls.
SDIST = "import hatchling.build as b, sys; print(b.build_sdist(sys.argv[1]))"


def run(line: Sequence[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        line, cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], ZipFile]:
    def wheel_of(source: Path) -> ZipFile:
        folder = tmp_path_factory.mktemp("wheel")
        run([*PIP, "wheel", "--no-deps", "-w", str(folder), str(source)], folder)
        (wheel,) = folder.glob("*.whl")
        return ZipFile(wheel)

    return wheel_of


@pytest.fixture(scope="module")
def wheel(built: Callable[[Path], ZipFile]) -> ZipFile:
    return built(ROOT)


@pytest.mark.slow
def test_one_name_is_installed_and_every_file_below_it_once(wheel: ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"smidgen", "smidgen-0.1.0.dist-info"}
    tracked = run(
        ["git", "ls-files", "edge_client", "coordinator", "profiling", "simulation"], ROOT
    )
    theirs = [f"smidgen/{name}" for name in tracked.split()]
    assert len(names) == len(set(names)) and not set(theirs) - set(names)


@pytest.mark.slow
def test_licences_and_the_bill_of_materials_are_in_it(wheel: ZipFile) -> None:
    told, base = "smidgen-0.1.0.dist-info", "smidgen/edge_client/embedded/base"
    for name in ("LICENSE", "NOTICE"):
        text = (ROOT / name).read_bytes()
        assert wheel.read(f"{told}/licenses/{name}") == wheel.read(f"{base}/{name}") == text
    assert b"License-Expression: Apache-2.0" in wheel.read(f"{told}/METADATA")
    assert wheel.read(f"{told}/sboms/sbom.cdx.json") == (ROOT / "sbom.cdx.json").read_bytes()


@pytest.mark.slow
def test_a_sdist_gives_the_same_wheel(
    wheel: ZipFile, built: Callable[[Path], ZipFile], tmp_path: Path
) -> None:
    hatchling = tmp_path / "hatchling"
    run([*PIP, "install", "--target", str(hatchling), "hatchling>=1.28"], tmp_path)
    name = run([sys.executable, "-c", SDIST, str(tmp_path)], ROOT, PYTHONPATH=str(hatchling))
    with tarfile.open(tmp_path / name.strip()) as archive:
        archive.extractall(tmp_path, filter="data")
    again = built(tmp_path / name.strip().removesuffix(".tar.gz"))
    for file in wheel.namelist():
        is_record = file.endswith("RECORD")
        assert is_record or again.read(file) == wheel.read(file), file
    assert again.namelist() == wheel.namelist()


@pytest.mark.slow
def test_what_is_installed_trains_and_serves_away_from_the_checkout(
    wheel: ZipFile, tmp_path: Path
) -> None:
    place = tmp_path / "site"
    run([*PIP, "install", "--no-deps", "--target", str(place), str(wheel.filename)], tmp_path)
    smidgen = [sys.executable, "-m", "smidgen"]
    rows = "text,label\n" + "my card is lost,card\nsend me a bill,bill\n" * 4
    (tmp_path / "texts.csv").write_text(rows)
    (tmp_path / "task.toml").write_text(
        'name = "mail"\nlabels = ["card", "bill"]\npatterns = ["{text} [MASK]"]\n'
    )
    task = ("--task", "task.toml")
    more = ("--data", "texts.csv", "--out", "adapter", "--rounds", "1", "--json")
    run([*smidgen, "client", "train", *task, *more], tmp_path, PYTHONPATH=str(place))
    assert (tmp_path / "adapter").is_dir()
    store = ("--store", "store", *task, "--rounds", "1")
    run([*smidgen, "coordinator", "create", *store], tmp_path, PYTHONPATH=str(place))
    where = "import smidgen.coordinator.page.routes as r; print(r.__file__)"
    found = run([sys.executable, "-c", where], tmp_path, PYTHONPATH=str(place))
    assert Path(found.strip()).is_relative_to(place)


@pytest.mark.slow
def test_the_demo_installs_little_and_runs_on_it(tmp_path: Path) -> None:
    ready = tmp_path / "venv" / ".demo-installed"
    run(["make", f"VENV={ready.parent}", str(ready)], ROOT)
    sizes = [file.lstat().st_size for file in ready.parent.rglob("*") if file.is_file()]
    assert sum(sizes) < 600e6
    python = str(ready.parent / "bin" / "python")
    missing = "import importlib.util as u; print(*map(u.find_spec, ['torch', 'pytest', 'pyarrow']))"
    assert run([python, "-c", missing], tmp_path).split() == ["None"] * 3
    demo = [python, "-m", "smidgen", "demo", "--rounds", "1", "--out", "out"]
    said = run(demo, tmp_path, PYTHONPATH="")
    assert "all devices together" in said and (tmp_path / "out" / "rounds.png").is_file()
