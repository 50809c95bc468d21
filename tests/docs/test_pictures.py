"""The pictures of docs/images name what is there, and those made from the code are as it is."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs/images").glob("*-journey.svg"))
PACKAGES = ("coordinator", "edge_client")


def boxes(picture: Path) -> Iterator[tuple[str, str]]:
    """What each box names, and the line of modules below it."""
    said = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text("utf-8"))
    for names, modules in pairwise(said):
        if modules.endswith(".py") and not names.endswith(".py"):
            yield names, modules


def module(said: str, before: Path | None) -> Path:
    """The file that a picture means; without a folder, that of the one before."""
    if "/" not in said and before is not None and (before.parent / said).is_file():
        return before.parent / said
    found = [ROOT / said, *(ROOT / package / said for package in PACKAGES)]
    return next(path for path in found if path.is_file())


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_what_a_picture_names_is_there(picture: Path) -> None:
    named = list(boxes(picture))
    assert len(named) > 10
    for names, modules in named:
        files: list[Path] = []
        for said in modules.split(", "):
            files.append(module(said, files[-1] if files else None))
        code = "\n".join(path.read_text("utf-8") for path in files)
        for name in re.findall(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+|[a-z]*_[a-z_]+", names):
            last = name.rpartition(".")[2]
            assert re.search(rf"\b(?:def|class) {last}\b", code), f"{name} is not in {modules}"


def test_pictures_made_from_the_code_are_not_old() -> None:
    command = [sys.executable, "scripts/pictures.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
