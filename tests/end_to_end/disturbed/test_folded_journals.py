"""A coordinator that is killed around the moments at which it folds its journal: the same bytes.

`SMIDGEN_FAULT_SEED` replays when it is killed.
"""

import os
import random
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from smidgen.coordinator.rounds.events import Folded
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import ANY_DISK, CLIENTS, Scene, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(900)]

ROUNDS, KILLS, WITHIN_S = 6, 4, 300.0
LONGEST_S = 0.02  # from when a fold begins to the kill; it takes a few milliseconds
SHORT = "from smidgen.coordinator.rounds import history; history.LONG, history.TIMES = 6, 0\n"
# A real coordinator whose journals are long by a few events, which dies soon after a fold begins.
MORTAL = (
    SHORT
    + """
import os, signal, sys, threading, time
from smidgen.coordinator.storage.store import Store

fold, after_s = Store.fold, float(sys.argv.pop(1))

def die():
    time.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)

def dying(self, *told):
    if after_s:
        threading.Thread(target=die, daemon=True).start()
    fold(self, *told)
    die()

Store.fold = dying
"""
)
END = "from smidgen import main; main()"


def serve(scene: Scene, before: str, port: int, *first: str) -> int:
    """Start a coordinator after a few lines of Python; where it listens."""
    (scene.fleet.logs / "coordinator.log").unlink(missing_ok=True)
    line = [sys.executable, "-c", before + END, *first, "coordinator", "serve"]
    options = ("--port", str(port), "--exit-when-finished", *ANY_DISK)
    store = ("--store", str(scene.folder / "store"))
    scene.fleet.own.start("coordinator", [*line, *store, *options], {"HF_HUB_OFFLINE": "1"})
    return int(scene.fleet.url_of("coordinator").rsplit(":", 1)[1])


def undisturbed(folder: Path, base: Base) -> bytes:
    """What a run comes to whose journal is never folded."""
    with fleet(folder / "logs", cores_each=1) as processes:
        scene = Scene(folder, base, processes)
        scene.create(ROUNDS, len(CLIENTS), 1)
        url = scene.serve()
        for name in CLIENTS:
            scene.client(name, url)
        scene.finish(WITHIN_S)
        return scene.adapter()


def is_dead(scene: Scene) -> bool:
    return scene.fleet.processes["coordinator"].poll() is not None


def test_kill_9_around_folding_changes_no_byte(
    scene: Scene, tmp_path: Path, tiny_base: Base, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = undisturbed(tmp_path / "undisturbed", tiny_base)
    seed = int(os.environ["SMIDGEN_FAULT_SEED"])
    chance, folded, lengths = random.Random(seed), 0, []
    scene.create(ROUNDS, len(CLIENTS), 1, scene.fixed_deadlines())
    port = 0
    for number in range(KILLS):
        after_s = number % 2 * chance.uniform(0.0, LONGEST_S)  # 0: as soon as it is over
        port = serve(scene, MORTAL, port, f"{after_s:.6f}")
        for name in CLIENTS if not number else ():
            scene.client(name, f"http://127.0.0.1:{port}")
        wait_for(partial(is_dead, scene), within_s=WITHIN_S)
        assert scene.fleet.processes.pop("coordinator").returncode == -9
        assert scene.coordinator_json("verify")["is_sound"]
        events = scene.journal()
        folded += isinstance(events[0], Folded)
        lengths.append(len(events))
    serve(scene, SHORT, port)
    scene.finish(WITHIN_S)
    assert folded >= KILLS // 2
    with capsys.disabled():
        print(f"\nSMIDGEN_FAULT_SEED={seed}: after kills {folded} folded, lengths {lengths}")
    assert scene.adapter() == expected
    assert scene.coordinator_json("status")["round_index"] == ROUNDS
    with closing(Store(scene.folder / "store")) as store:
        events = store.events(scene.run_id)
    assert isinstance(events[0], Folded) and len(events) < 30
