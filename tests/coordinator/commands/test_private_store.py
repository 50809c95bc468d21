"""What commands write into a store is its owner's alone, whatever the umask."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_client.bases.base import Base
from edge_client.files import open_to_others
from tests.command_line import smidgen


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_no_command_leaves_anything_open_to_others(tmp_path: Path, tiny_base: Base) -> None:
    store = ("--store", str(tmp_path / "store"))
    task = ("--task", "agnews", "--base", str(tiny_base.folder), "--adapter", "head")
    commands = {
        "init": (),
        "create": task,
        "status": (),
        "extend": ("--rounds", "12"),
        "devices list": (),
        "tokens new": (),
        "operators list": (),
        "list": (),
        "figures": (),
        "verify": (),
        "prune": (),
    }
    for command, options in commands.items():
        done = smidgen("coordinator", *command.split(), *store, *options)
        assert done.exit_code == 0, done.output
        assert [*open_to_others(tmp_path / "store")] == [], command
