"""The page of boards says what the table says, and containers start what there is."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer.main

from tests.jetson.wheelhouses import JETSON

CONTAINERS = sorted((JETSON / "containers").glob("*.Containerfile"))


def test_the_page_of_boards_holds_the_tables() -> None:
    line = [sys.executable, "-B", str(JETSON / "boards_page"), "--check"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_container_takes_its_base_and_says_that_it_was_not_built_on_it() -> None:
    assert [path.stem for path in CONTAINERS] == ["generic", "jetpack4", "jetpack6"]
    for path in CONTAINERS:
        text = path.read_text()
        assert re.search(r"^ARG BASE=[\w.:-]+$", text, re.MULTILINE), path.name
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
        assert "NOT BUILT on this base" in text


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_container_starts_a_command_that_there_is(path: Path) -> None:
    (start, rest) = re.findall(r"^(?:ENTRYPOINT|CMD) \[(.*)\]$", path.read_text(), re.MULTILINE)
    assert shlex.split(start.replace(",", " ")) == ["smidgen", "client"]
    name, *words = shlex.split(rest.replace(",", " "))
    command = typer.main.get_command(import_module("smidgen.edge_client.cli").app)
    given = getattr(command, "commands", {})[name].make_context(name, words).params
    assert str(given["state"]).startswith("/var/lib/smidgen/")
    assert name == "run" and given["coordinator"].startswith("https://")


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_what_a_container_copies_is_there(path: Path) -> None:
    root = JETSON.parents[1]
    for source in re.findall(r"^COPY (?!--from)(\S+)", path.read_text(), re.MULTILINE):
        assert source == "wheelhouse" or (root / source).is_dir(), source
