"""A device's texts, and an adapter trained on them by the front door, for tests of commands."""

from pathlib import Path

from smidgen.edge_client.bases.base import Base
from tests.command_line import Done, smidgen

TASK = """
name = "hub"
labels = ["security", "weather"]
patterns = ["{text} this is about [MASK] ."]
"""
PAIRS = """
name = "pairs"
labels = ["security", "weather"]
patterns = ["{text_a} ? [MASK] . {text_b}"]
"""
LABELLED = "id,text,label\n1,rain at nine,weather\n2,a door,security\n3,storm,weather\n"


def write_data(folder: Path, task: str = TASK) -> Path:
    """A data folder with labelled and test texts."""
    folder.mkdir()
    (folder / "labelled.csv").write_text(LABELLED)
    (folder / "test.csv").write_text(LABELLED)
    (folder / "task.toml").write_text(task)
    return folder


def client(command: str, base: Base, *arguments: object) -> Done:
    """A command of the client that computes with a base."""
    common = ("--base", str(base.folder), "--engine", "onnx")
    return smidgen("client", command, *map(str, arguments), *common)


def train(base: Base, data: Path, out: Path, *more: object) -> Done:
    """A short training, as good as it may be."""
    short = ("--tokens", 32, "--epochs", 1)
    return client("train", base, "--data", data, "--out", out, *short, *more)


def refused(done: Done) -> str:
    """The one line of a command that was refused as wrong use."""
    assert done.exit_code == 2, done
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("smidgen ")]
    assert "Traceback" not in done.stderr
    return line
