"""Every adapter of asynchronous rounds, made once more from the journal and the updates it names.

The coordinator is a process that is killed at random moments while devices answer in any order, say
things twice and forget what they were at; `SMIDGEN_FAULT_SEED` replays when. A coordinator removes
updates once a version is made of them, so what was sent is kept here.
"""

import os
import random
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from contextlib import closing, suppress

import httpx
import pytest

from coordinator.rounds.events import StepClosed
from coordinator.rounds.state import State, evolve
from coordinator.serving.executor import aggregate
from coordinator.serving.ledger import Live
from coordinator.storage.runs import config_of
from coordinator.storage.store import Store
from edge_client.wire.fleet import Membership
from edge_client.wire.messages import Over, Report, Work
from tests.coordinator.devices import Device, enrol
from tests.end_to_end.conftest import Scene

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(600)]

ROUNDS, NAMES, KILLS, WITHIN_S = 12, ("a", "b", "c", "d"), 4, 120.0
TABLE = """
adaptive_deadline = false
evaluate_every = 4
[asynchronous]
buffer = 2
"""


def killed_until(told: Future[Over], scene: Scene, port: int, chance: random.Random) -> Over:
    """What came of a run whose coordinator is killed a few times, whatever it is at."""
    for kills in range(KILLS):
        with suppress(TimeoutError):
            found = told.result(chance.uniform(0.2, 1.0))
            assert kills > 0, "it was over before anybody was killed"
            return found
        scene.kill("coordinator")
        scene.serve(port)
    return told.result(WITHIN_S)


def answered(device: Device, work: Work, kept: Store, chance: random.Random) -> None:
    """One piece of work: done, done twice, or left in the middle to be done again."""
    if work.kind != "train":
        device.report(Report(work.work_id, "done", 4, accuracy=0.5))
        return
    body = device.update(work)
    kept.put(body)
    for _ in range(chance.randint(1, 2)):
        device.put(work.work_id, body)
    if chance.random() < 0.8:
        device.report(Report(work.work_id, "done", 8, loss=1.0))


def over(devices: list[Device], kept: Store, chance: random.Random) -> Over:
    """What came of the run, once devices have answered all they were asked in any order."""
    end_s = time.monotonic() + WITHIN_S
    while time.monotonic() < end_s:
        device = chance.choice(devices)
        try:
            given = device.next(0.05)
            if given.over is not None:
                return given.over
            if given.terms is not None:
                device.tell(given.terms.run_id, Membership("joined"))
            if given.work is not None:
                answered(device, given.work, kept, chance)
        except (httpx.TransportError, AssertionError, ValueError):
            time.sleep(0.05)  # it is killed, or has only just begun; nothing is lost by that
    raise AssertionError("took too long")


def test_what_a_disturbed_run_served_is_what_its_journal_gives(scene: Scene) -> None:
    seed = int(os.environ["SMIDGEN_FAULT_SEED"])
    chance, turns = random.Random(seed), random.Random(seed + 1)
    (scene.folder / "run.toml").write_text(TABLE)
    scene.create(ROUNDS, len(NAMES), 1, str(scene.folder / "run.toml"))
    shutil.copytree(scene.folder / "store", scene.folder / "kept")
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    with (
        closing(Store(scene.folder / "kept")) as kept,
        httpx.Client(base_url=url, timeout=30) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        devices = [enrol(http, scene.token, name) for name in NAMES]
        told = killed_until(pool.submit(over, devices, kept, turns), scene, port, chance)
        path = f"/v1/adapters/{told.adapter_sha256}"
        served = http.get(path, headers=devices[0].headers).content
        for device in devices:
            device.tell(told.run_id, Membership("home"))
        scene.finish()
        with closing(Store(scene.folder / "store")) as store:
            (row,) = store.runs()
            events = list(store.events(row.run_id))
        state, config, made, stale = State(row.adapter_sha256), config_of(row), 0, 0
        for event in events:
            step = state.step
            if isinstance(event, StepClosed) and step and step.opened.kind == "train":
                again = aggregate(kept, Live(row, config, state), step, event.closed_at_s)
                assert again == event
                made += not event.refused
                stale += sum(step.staleness(work_id) > 0 for work_id in step.counted())
            state = evolve(state, event)
        assert (made, state.round_index, told.ended) == (ROUNDS, ROUNDS, "rounds")
        assert kept.read(state.adapter_sha256) == served and stale > 0
    assert "Traceback" not in scene.log("coordinator")
