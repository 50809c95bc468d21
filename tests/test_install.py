"""What a device must hold: the base install, in an empty environment; pins, hashes and the bill."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_BYTES = 250_000_000


def bytes_of(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")))


@pytest.mark.slow
def test_the_base_install_is_small_and_without_torch(tmp_path: Path) -> None:
    venv, python = str(tmp_path / "venv"), str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    pins = ("-c", str(ROOT / "constraints" / "constraints.txt"))
    subprocess.run([*pip, "install", "-q", *pins, str(ROOT)], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    sizes = {entry.name: bytes_of(entry) for entry in packages.iterdir()}
    print(sorted(sizes.items(), key=lambda item: -item[1])[:12], sum(sizes.values()))
    assert sum(sizes.values()) <= MOST_BYTES, sizes
    assert not {"torch", "transformers", "peft", "fastapi", "matplotlib"} & set(sizes)
    line = [python, "-m", "smidgen", "client", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def pins(name: str) -> dict[str, list[str]]:
    """Lines of a file of constraints, each with the hashes below it."""
    text = (ROOT / "constraints" / f"{name}.txt").read_text().replace("\\\n", "")
    lines = [re.split(r"\s+--hash=", line) for line in text.splitlines() if line[0] != "#"]
    return {first.strip(): hashes for first, *hashes in lines}


@pytest.mark.parametrize("name", ["demo", "dev", "device"])
def test_what_is_installed_by_hashes_is_what_is_pinned(name: str) -> None:
    known, found = {line.split(" ;")[0] for line in pins("constraints")}, pins(name)
    assert found and {line.split(" ;")[0] for line in found} <= known
    assert all(found.values()) and not any(line.startswith("torch==") for line in found)


@pytest.mark.parametrize("name", ["flwr", "ort_training", "trackers"])
def test_other_environments_are_installed_by_hashes(name: str) -> None:
    assert all(pins(name).values())


def test_the_bill_of_materials_is_of_now() -> None:
    bill = runpy.run_path(str(ROOT / "scripts" / "sbom.py"))["bill"]()
    assert json.loads((ROOT / "sbom.cdx.json").read_text()) == bill, "python scripts/sbom.py"
    assert {"numpy", "onnxruntime", "embedded base, model.safetensors"} <= {
        one["name"] for one in bill["components"]
    }
