"""What people put in place of a store, and clocks that nobody set: one line each, nothing lost."""

import hashlib
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.rounds.history import Past, to_plain
from smidgen.coordinator.storage.credentials import add_operator
from smidgen.coordinator.storage.database import DATABASE
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.client.connection import http_client, nobody
from smidgen.edge_client.client.state import ClientState, Identity
from tests.coordinator.devices import key_of
from tests.coordinator.storage.test_folded_journals import stand_in
from tests.coordinator.upkeep.stores import filled
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for
from tests.end_to_end.disturbed.wall_clock import WallClock

pytestmark = pytest.mark.slow
COMMANDS = {
    "serve": ("--port", "0"),
    "status": (),
    "list": (),
    "figures": (),
    "prune": (),
    "create": ("--task", "agnews"),
    "rollback": ("--round", "1"),
    "export": ("--out", "out"),
    "backup": ("--out", "out"),
    "verify": (),
}
IN_1970_S, IN_2106_S = 86_400, 2**32 - 10  # seconds; no 32 bits hold what comes after


def one_line(scene: Scene, command: str, store: Path, *more: str) -> str:
    """What a command says that refuses a store."""
    line = ("coordinator", command, "--store", str(store), *COMMANDS[command], *more)
    done = scene.smidgen(*line, check=False)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, (command, done)
    assert done.stderr.count("\n") == 1, (command, done)
    return done.stdout if command == "verify" else done.stderr


def bytes_of(store: Path) -> dict[str, str]:
    """What lies in a store that nobody serves."""
    files = [path for path in store.rglob("*") if path.is_file() and "lock" not in path.name]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def put(scene: Scene, store: Path, port: int, *options: str) -> None:
    """Serve a copy of a store in place of the scene's own, which is kept beside it."""
    mine, kept = scene.folder / "store", scene.folder / "kept"
    scene.kill("coordinator")
    if kept.exists():  # what lies in its place was a copy
        shutil.rmtree(mine)
    else:
        mine.rename(kept)
    shutil.copytree(store, mine)
    scene.serve(port, *options)


def test_devices_tell_a_backup_of_another_store_and_lose_nothing(
    scene: Scene, other_scene: Scene, undisturbed_with: Callable[[str], bytes]
) -> None:
    scene.create(2, len(CLIENTS), EPOCHS)
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url)
    wait_for(lambda: "round 2 of 2: train" in scene.log("b"), scene.fleet.check)
    scene.kill("b")  # in the middle of it: the run goes on
    other_scene.create(1, 1, 1)
    taken, state = other_scene.folder / "backup", scene.folder / "state" / "b"
    other_scene.coordinator_json("backup", "--out", str(taken))
    port, before = int(url.rsplit(":", 1)[1]), bytes_of(state)
    put(scene, taken, port)
    scene.client("b", url)  # one starts, the other one is alive
    for name, said in (("a", "does not know this device: its key is not"), ("b", "token is not")):
        assert scene.fleet.processes.pop(name).wait(120) == 2
        last = scene.log(name).splitlines()[-1]
        assert last.startswith(f"smidgen client: {url} ") and said in last
    assert bytes_of(state) == before
    put(scene, scene.folder / "kept", port)
    for name in CLIENTS:
        scene.client(name, url)
    scene.finish()
    assert scene.adapter() == undisturbed_with("auto")


def test_devices_tell_a_backup_from_before_their_run_and_go_on_once_it_is_there(
    scene: Scene, undisturbed_with: Callable[[str], bytes]
) -> None:
    scene.create(1, len(CLIENTS), 1)
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url)
    scene.finish()
    taken, port = scene.folder / "backup", int(url.rsplit(":", 1)[1])
    scene.coordinator_json("backup", "--out", str(taken))
    scene.create(2, len(CLIENTS), EPOCHS, "--name", "second")
    scene.fleet.processes.clear()
    scene.serve(port, "--no-exit-when-finished")
    for name in CLIENTS:
        scene.start_client(name, url)
    only = ("--run", scene.run_id)
    wait_for(lambda: scene.coordinator_json("status", *only)["round_index"] >= 1, scene.fleet.check)
    put(scene, taken, port, "--no-exit-when-finished")
    told = f"{url} has nothing of run second ({scene.run_id}) for this device"
    wait_for(lambda: all(told in scene.log(name) for name in CLIENTS), scene.fleet.check)
    put(scene, scene.folder / "kept", port)
    wait_for(lambda: scene.fleet.processes["coordinator"].poll() == 0, scene.fleet.check)
    for name in CLIENTS:
        assert scene.log(name).count(told) == 1 and "run second is finished" in scene.log(name)
        assert scene.end(name) == 0
        mine = scene.folder / "state" / name / "adapter" / "adapter_model.safetensors"
        assert mine.read_bytes() == undisturbed_with("auto")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_from_the_future_is_one_line_to_every_command_and_stays(
    scene: Scene, command: str
) -> None:
    store = scene.folder / "store"
    with closing(Store(store)) as made:
        filled(made, "mail", 2, 2)
    with closing(sqlite3.connect(store / DATABASE)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '0099'")
    before = bytes_of(store)
    said = one_line(scene, command, store)
    assert "has schema 0099, and this smidgen knows" in said
    assert bytes_of(store) == before


@pytest.mark.parametrize("place", ["in the middle", "at the end"])
@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("create", "rollback")]
)
def test_an_event_of_another_run_is_one_line(scene: Scene, command: str, place: str) -> None:
    store = scene.folder / "store"
    with closing(Store(store)) as made:
        filled(made, "mail", 2, 2)
        filled(made, "news", 3, 3)
    with closing(sqlite3.connect(store / DATABASE)) as database, database:
        end = database.execute("SELECT max(seq) FROM events WHERE run_id = 'r-mail'").fetchone()[0]
        seq = 3 if place == "in the middle" else end + 1
        database.execute("DELETE FROM events WHERE run_id = 'r-mail' AND seq = ?", (seq,))
        database.execute(
            "INSERT INTO events (run_id, seq, payload, chain) SELECT 'r-mail', seq, payload, chain "
            "FROM events WHERE run_id = 'r-news' AND seq = ?",
            (seq,),
        )
    more = ("--run", "r-mail") if command in ("status", "figures", "rollback", "export") else ()
    said = one_line(scene, command, store, *more)
    assert f"the journal of run r-mail was changed: event {seq} does not follow" in said


@pytest.mark.parametrize("now_s", [IN_1970_S, IN_2106_S])
def test_a_device_s_clock_of_another_time_changes_no_byte(
    scene: Scene, now_s: int, undisturbed_with: Callable[[str], bytes]
) -> None:
    clock = WallClock(scene.folder)
    clock.set(now_s - int(time.time()))
    scene.create(2, len(CLIENTS), EPOCHS)
    url = scene.serve()
    scene.client("b", url)
    ClientState(scene.folder / "state" / "a").keep_identity(Identity("", key_of("a")))
    where = ("--coordinator", url, "--token", scene.token, "--data", str(scene.data("a")))
    what = ("--base", str(scene.base.folder), "--name", "a", "--until", "finished")
    line = [sys.executable, "-m", "smidgen", "client", "run", *where, *what]
    line += ["--state", str(scene.folder / "state" / "a")]
    scene.fleet.own.start("a", line, {**clock.environment, "OMP_NUM_THREADS": "1"})
    scene.finish()
    assert scene.adapter() == undisturbed_with("auto")


def test_who_rolls_a_served_run_back_to_a_round_that_was_folded_hears_which_are_there(
    scene: Scene,
) -> None:
    """By the command and over the operator's API; the run stays where it was."""
    store = scene.folder / "store"
    with closing(Store(store)) as made:
        run = filled(made, "mail", 3, 2, open_updates=1)
        known = Past({0: run.adapters[0], 3: run.adapters[3]})
        folded = replace(stand_in(made, run.run_id), past=to_plain(known))
        made.fold(run.run_id, folded)
        token = add_operator(made, "operator", 1.0)
    url = scene.serve()
    path = f"{url}/v1/operator/runs/{run.run_id}"
    headers = {"Authorization": f"Bearer {token}"}
    with http_client(url, nobody(), headers=headers) as http:
        before = http.get(path).json()
        said = one_line(scene, "rollback", store, "--run", run.run_id)
        assert "round 1" in said and "0, 3" in said
        answer = http.post(f"{path}/rollback", json={"round_index": 1})
        assert answer.status_code == 409 and "0, 3" in answer.json()["detail"]
        after = http.get(path).json()
    assert {name for name in after if after[name] != before[name]} <= {"closes_in_s"}
    scene.end("coordinator")
    assert scene.coordinator_json("verify")["is_sound"]
