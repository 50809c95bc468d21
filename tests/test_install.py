"""What a device must hold: the base install, in an empty virtual environment."""

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
