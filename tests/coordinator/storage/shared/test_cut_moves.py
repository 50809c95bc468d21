"""A move that fails or is killed at any place: one fleet goes on, and the move is asked again."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.api.keeping import move, verify
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep import backup
from smidgen.coordinator.upkeep.backup import Found
from smidgen.edge_client.errors import Failed, WrongInput
from tests.coordinator.storage.shared.test_moves import everything, fleet

# `move`, killed where a function of a module begins.
KILLED = """
import importlib, os, signal, sys
from smidgen.coordinator.api.keeping import move
module, name, source, database, blobs = sys.argv[1:]
module = importlib.import_module(module)
target = getattr(module, name.partition(".")[0])
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if "." in name:
    setattr(target, name.partition(".")[2], kill)
else:
    setattr(module, name, kill)
move(source, database, blobs_to=blobs)
"""


def killed_move(source: Path, place: StorePlace, module: str, name: str) -> None:
    told = [sys.executable, "-c", KILLED, module, name, str(source), place.database, place.blobs]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(told, capture_output=True, text=True, env=env)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_a_move_that_fails_in_its_final_look_leaves_one_fleet_and_is_asked_again(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, there = tmp_path / "old", replace(place, folder=tmp_path / "old")
    fleet(old)
    with monkeypatch.context() as patched:
        patched.setattr(backup, "look", lambda _: Found(wrong=["a blob is damaged"]))
        with pytest.raises(Failed, match=r"no store was moved: .*a blob is damaged"):
            move(old, place.database, blobs_to=place.blobs)
    with pytest.raises(StoreError, match=f"the move of {old} to postgresql.* was cut; ask for it"):
        Store(there)
    with closing(Store(old)) as store:  # it goes on here, and more than that moves later
        wanted = everything(store)
    move(old, place.database, blobs_to=place.blobs)
    with closing(Store(there)) as store:
        assert everything(store) == wanted
    with pytest.raises(WrongInput, match="was moved to postgresql"):
        move(old, place.database, blobs_to=place.blobs)


@pytest.mark.parametrize(
    ("module", "name", "is_old_left"),
    [
        ("smidgen.coordinator.storage.database", "Database.write", False),  # nothing is there yet
        ("smidgen.coordinator.upkeep.backup", "_finished", True),
        ("smidgen.coordinator.storage.opening", "Marks.arrive", True),
    ],
)
@pytest.mark.slow
def test_a_move_that_is_killed_leaves_one_fleet_and_is_asked_again(
    module: str, name: str, is_old_left: bool, place: StorePlace, tmp_path: Path
) -> None:
    old, there = tmp_path / "old", replace(place, folder=tmp_path / "old")
    run, _ = fleet(old)
    killed_move(old, place, module, name)
    if is_old_left:
        with pytest.raises(StoreError, match="was cut; ask for it again"):
            Store(there)
        with pytest.raises(StoreError, match="was moved to"):
            Store(old)
    else:
        Store(old).close()
    move(old, place.database, blobs_to=place.blobs)
    with closing(Store(there)) as store:
        assert store.runs()[0].run_id == run.run_id and not store.marks.arriving()
    assert verify(there).lines == []
    with pytest.raises(StoreError, match="was moved to"):
        Store(old)


@pytest.mark.slow
def test_a_move_that_is_killed_between_the_two_commits_leaves_the_old_store(
    place: StorePlace, tmp_path: Path
) -> None:
    old, there = tmp_path / "old", replace(place, folder=tmp_path / "old")
    fleet(old)
    said = "source = Marks.leaving\n"
    kill = (
        "import contextlib, os, signal\n"
        "from smidgen.coordinator.storage.opening import Marks\n"
        + said
        + "@contextlib.contextmanager\n"
        "def leaving(self, to):\n"
        "    with source(self, to) as connection:\n"
        "        yield connection\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"  # the target's are committed, ours not
        "Marks.leaving = leaving\n"
        "import sys\n"
        "from smidgen.coordinator.api.keeping import move\n"
        "move(sys.argv[1], sys.argv[2], blobs_to=sys.argv[3])\n"
    )
    told = [sys.executable, "-c", kill, str(old), place.database, place.blobs]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(told, env=env).returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="was cut; ask for it again"):
        Store(there)
    Store(old).close()
    move(old, place.database, blobs_to=place.blobs)
    assert verify(there).lines == []
    with pytest.raises(StoreError, match="was moved to"):
        Store(old)
