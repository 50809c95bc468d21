"""What commands write into a store is its owner's alone; what only reads writes nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.files import open_to_others
from tests.command_line import smidgen
from tests.coordinator.test_cli import created, server


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


ROOT = Path(__file__).parents[3]
READ = """
import json, sys
from tests.command_line import smidgen
for line in json.loads(sys.argv[1]):
    done = smidgen("coordinator", *line)
    print(json.dumps([done.exit_code, done.stderr]))
"""
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
    lines = [
        [*(str(tmp_path / command[0]) if word == "OUT" else word for word in command)]
        for command in (*READING, ("tokens", "new"))
    ]
    given = json.dumps([[*line, "--store", str(seen)] for line in lines])
    with server(tmp_path, "--port", "0") if is_served else nullcontext():
        before = sorted(path.name for path in store.rglob("*"))
        done = subprocess.run(
            [*alone, sys.executable, "-c", READ, given], capture_output=True, text=True, cwd=ROOT
        )
        if done.returncode == 77 or "unshare" in done.stderr:
            pytest.skip(f"no mounts of one's own here: {done.stdout}{done.stderr}")
        *read, (code, said) = map(json.loads, done.stdout.splitlines())
        assert len(read) == len(READING) and {code for code, _ in read} == {0}, read
        assert sorted(path.name for path in store.rglob("*")) == before
        assert code == 1 and len(said.splitlines()) == 1, said
        assert "let this user write to its folder" in said
