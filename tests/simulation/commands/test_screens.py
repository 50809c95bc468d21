"""What `smidgen simulate` prints on 80 columns and in a pipe: whole, and in one style."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("matplotlib")

from tests.command_line import shown, smidgen
from tests.simulation.commands.test_experiments import file  # noqa: F401 - a fixture


def whole(*words: str) -> str:
    """What a command prints in a pipe, after its screen of 80 columns was found to be whole."""
    screen, piped = shown(*words), smidgen(*words).stdout
    tables = screen[screen.rfind("\x1b[?25h") + 1 :]
    assert max(map(len, tables.splitlines())) <= 80 and "…" not in tables + piped
    assert "━" not in piped.split("\n", 1)[-1] and "┃" not in screen + piped
    return piped


def test_tables_of_data_and_of_a_split_are_whole(
    file: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(file.parent)
    said = whole("simulate", "data", "folder:.")
    assert "yes        6     6\n" in said and "all       12    12\n" in said
    said = whole("simulate", "split", "train.csv", "--out", "s", "--clients", "2")
    assert "what was dealt out" in said and "\nfolders  s\n" in said


@pytest.mark.slow
def test_an_experiment_of_ones_own_is_whole(
    file: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(file.parent)
    said = whole("simulate", "run", "mine.toml", "--out", "out")
    assert "k layer-forwards: thousands of texts read by one layer each" in said
    assert " KiB" in said and " MB" not in said and "written  " in said
