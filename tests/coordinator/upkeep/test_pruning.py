"""Removing blobs from real stores: what goes, what stays, and who is waited for."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.api.keeping import prune
from smidgen.coordinator.rounds.learning.memory import DeviceStates
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.storage.dialects.sqlite import FileLocks
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep import retention
from smidgen.coordinator.upkeep.retention import Busy, DiskLimits, book_of, note, remove
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.messages import CodedStep
from tests.command_line import smidgen
from tests.coordinator.upkeep.stores import UPDATE_BYTES, filled, names

PRUNE = [sys.executable, "-m", "smidgen", "coordinator", "prune", "--store"]


def test_updates_of_closed_steps_go_and_those_of_the_open_one_stay(
    store: Store, tmp_path: Path
) -> None:
    run = filled(store, "mail", rounds=3, devices=4, open_updates=2)
    done = prune(tmp_path / "store")
    assert done.files == {"update": 12} and done.freed == 12 * UPDATE_BYTES
    assert names(tmp_path / "store") == {*run.adapters, *run.updates[-2:]}


def test_a_run_that_goes_on_keeps_its_last_rounds_and_a_finished_one_only_its_ends(
    store: Store, tmp_path: Path
) -> None:
    goes_on = filled(store, "mail", rounds=8, devices=1, open_updates=0)
    finished = filled(store, "news", rounds=8, devices=1)
    note(tmp_path / "store", DiskLimits(keep_rounds=3))
    prune(tmp_path / "store")
    kept = {goes_on.adapters[0], *goes_on.adapters[-3:], finished.adapters[0]}
    assert names(tmp_path / "store") == kept | {finished.adapters[-1]}


@pytest.mark.parametrize("is_chosen", [True, False])
@pytest.mark.parametrize("is_finished", [True, False])
def test_what_the_next_round_goes_on_from_stays(is_chosen: bool, is_finished: bool) -> None:
    """Also of a run that is finished: it may be extended."""
    run = Run("r", 0.0, "", "b", "b", "bert", "first", "secret")
    state = State("first", is_finished=is_finished, memory_sha256="m", shared={"scaffold": "c"})
    state = replace(state, kept=DeviceStates(steps=(CodedStep("zeroth", "s", 9),)))
    book = replace(book_of(run, 1), state=state)
    assert {"first", "m", "c", "s"} <= book.kept(is_chosen, is_thorough=True)


def test_rounds_that_are_asked_for_stay_in_finished_runs_too(store: Store, tmp_path: Path) -> None:
    run = filled(store, "mail", rounds=8, devices=1)
    prune(tmp_path / "store", keep_rounds=4)
    assert names(tmp_path / "store") == {run.adapters[0], *run.adapters[-4:]}


def test_one_run_is_pruned_alone_and_leaves_what_belongs_to_none(
    store: Store, tmp_path: Path
) -> None:
    mail, news = filled(store, "mail", 4, 2), filled(store, "news", 4, 2)
    orphan = store.put(b"nobody's")
    done = prune(tmp_path / "store", run="mail")
    assert done.files == {"update": 8, "adapter": 3}
    left = {mail.adapters[0], mail.adapters[-1], *news.adapters, *news.updates, orphan}
    assert names(tmp_path / "store") == left
    with pytest.raises(WrongInput, match="no run 'post'"):
        prune(tmp_path / "store", run="post")


def test_what_cuts_have_left_goes_too(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    run = filled(store, "mail", rounds=1, devices=1)
    store.put(b"nobody's")
    (store.folder / "blobs" / f"{run.adapters[0]}.0a1b2c3d.tmp").write_bytes(b"half")
    (store.folder / "blobs" / "notes.txt").write_text("an owner's own")
    (folder / "uploads").mkdir(exist_ok=True)
    old, young = folder / "uploads" / "old", folder / "uploads" / "young"
    for path in (old, young):
        path.write_bytes(b"12345")
    os.utime(old, (1, 1))
    done = prune(folder)
    assert done.files == {"update": 1, "orphan": 2, "part": 1} and done.freed_bytes["part"] == 5
    assert names(folder) == {*run.adapters, "notes.txt"} and young.exists() and not old.exists()


def test_a_dry_run_says_the_same_and_removes_nothing(store: Store, tmp_path: Path) -> None:
    filled(store, "mail", rounds=5, devices=3)
    before = names(tmp_path / "store")
    said = prune(tmp_path / "store", dry_run=True)
    assert names(tmp_path / "store") == before and said.files["update"] == 15
    assert prune(tmp_path / "store") == said
    assert prune(tmp_path / "store").freed == 0


def test_nothing_goes_while_somebody_writes_a_blob_that_nobody_refers_to_yet(store: Store) -> None:
    with store.claiming():
        name = store.put(b"an update on its way")
        with pytest.raises(Busy):
            remove(store, {name}, set)
        assert store.read(name) == b"an update on its way"
    assert remove(store, {name}, set) == {name}


def test_what_came_to_be_needed_meanwhile_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 1)
    blobs = sorted(store.put(bytes([number])) for number in range(4))
    asked = iter([set(), {blobs[1]}, set(), {blobs[3]}])
    assert remove(store, blobs, lambda: next(asked)) == {blobs[0], blobs[2]}


def test_parts_go_that_a_process_left_which_served_beside_others(store: Store) -> None:
    for number in (1, 2):
        folder = store.folder / f"uploads-{number}"
        folder.mkdir()
        for name in ("old", "young"):
            (folder / name).write_bytes(b"part")
        os.utime(folder / "old", (0, 0))
    with FileLocks(store.folder).alone("uploads-1.lock"):  # as who serves does
        assert prune(store.folder, dry_run=True).files == {"part": 1}
        assert prune(store.folder).files == {"part": 1}
    left = {str(one.relative_to(store.folder)) for one in store.folder.glob("uploads-?/*")}
    assert left == {"uploads-1/old", "uploads-1/young", "uploads-2/young"}
    assert prune(store.folder).files == {"part": 1}


def test_the_command_says_what_it_frees(store: Store, tmp_path: Path) -> None:
    filled(store, "mail", rounds=4, devices=2)
    line = ("coordinator", "prune", "--store", str(tmp_path / "store"))
    said = smidgen(*line, "--dry-run")
    assert "would free 7.81 KiB: 8 updates of closed steps" in said.stdout, said.stdout
    done = smidgen(*line)
    assert done.exit_code == 0 and "freed" in done.stdout and "3 adapters of old" in done.stdout
    assert "nothing to remove" in smidgen(*line).stdout
    wrong = smidgen(*line, "--keep-rounds", "-1")
    assert wrong.exit_code == 2 and "--keep-rounds -1" in wrong.stderr


def files_in(folder: Path) -> int:
    """Cheaper than their names: whoever looks all the time slows down what is looked at."""
    with os.scandir(folder) as found:
        return sum(1 for _ in found)


@pytest.mark.slow
def test_a_prune_that_is_killed_loses_nothing_and_the_next_one_goes_on(
    store: Store, tmp_path: Path
) -> None:
    run = filled(store, "mail", rounds=3, devices=2, open_updates=1)
    for number in range(20_000):
        (store.folder / "blobs" / f"{number:064x}").write_bytes(b"nobody's")
    needed, kills = {*run.adapters, *run.updates[-1:]}, 0
    while True:
        before = files_in(store.folder / "blobs")
        process = subprocess.Popen([*PRUNE, str(tmp_path / "store")], stdout=subprocess.DEVNULL)
        while process.poll() is None and files_in(store.folder / "blobs") > before - 2000:
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        is_done = process.wait() == 0
        assert needed <= names(tmp_path / "store")
        for name in needed:
            store.read(name)
        if is_done:
            break
    assert kills >= 3 and names(tmp_path / "store") == needed
