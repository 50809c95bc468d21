"""What commands write into a store is its owner's alone; what only reads writes nothing."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.files import open_to_others
from tests.command_line import smidgen
from tests.coordinator.test_cli import SMIDGEN, created, server


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


READING = (
    ("list",),
    ("status",),
    ("figures",),
    ("verify",),
    ("devices", "list"),
    ("tokens", "list"),
    ("export", "--out", "OUT"),
    ("backup", "--out", "OUT"),
)


@pytest.mark.parametrize("is_served", [False, True], ids=["alone", "served"])
def test_a_store_that_may_only_be_read_is_read(
    tmp_path: Path, tiny_base: Base, is_served: bool
) -> None:
    created(tmp_path, tiny_base, 2)
    store, seen = tmp_path / "store", tmp_path / "seen"
    seen.mkdir()
    script = (
        'mount --bind "$0" "$1" 2>&1 && mount -o remount,ro,bind "$1" 2>&1 || exit 77; '
        'shift; exec "$@"'
    )
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, str(store), str(seen)]
    with server(tmp_path) if is_served else nullcontext():
        before = sorted(path.name for path in store.rglob("*"))
        for place, command in enumerate(READING):
            out = str(tmp_path / f"out{place}")
            line = [*SMIDGEN, *(out if word == "OUT" else word for word in command)]
            done = subprocess.run(
                [*alone, *line, "--store", str(seen)], capture_output=True, text=True
            )
            if done.returncode == 77 or "unshare" in done.stderr:
                pytest.skip(f"no mounts of one's own here: {done.stdout}{done.stderr}")
            assert done.returncode == 0, (command, done.stderr)
        assert sorted(path.name for path in store.rglob("*")) == before
        done = subprocess.run(
            [*alone, *SMIDGEN, "tokens", "new", "--store", str(seen)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "let this user write to its folder" in done.stderr
