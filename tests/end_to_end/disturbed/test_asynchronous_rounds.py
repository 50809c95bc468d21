"""Asynchronous rounds of real processes: one client is slowed down, the coordinator is killed.

The slow one is stopped and let go on again by turns (SIGSTOP, SIGCONT), so it gets a tenth of its
time. `SMIDGEN_FAULT_SEED` replays when the coordinator is killed. At the end the journal, folded
once more, gives the same state, and every version has as many updates as its buffer holds.
"""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from contextlib import closing, contextmanager, suppress
from functools import partial

import httpx
import pytest

from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.rounds.history import to_plain
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.coordinator.serving.executor import aggregate
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.storage.runs import config_of
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Over, Report, Work
from tests.coordinator.devices import Device, enrol
from tests.end_to_end.conftest import Scene, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(900)]

QUICK, SLOW = ("a", "c"), "b"
ROUNDS, MANY_ROUNDS, EPOCHS, KILLS, WITHIN_S = 8, 60, 10, 3, 300.0
TABLE = """
adaptive_deadline = false
evaluate_every = 4
[asynchronous]
buffer = 2
most_staleness = 20
"""
PERIOD_S, SHARE = 0.5, 0.1


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """A process that gets a tenth of its time."""
    over = threading.Event()

    def turns() -> None:
        with suppress(ProcessLookupError):
            while not over.wait(PERIOD_S * SHARE):
                os.kill(pid, signal.SIGSTOP)
                over.wait(PERIOD_S * (1 - SHARE))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_at_work(scene: Scene) -> bool:
    """Whether anybody was asked to train in this life of the coordinator."""
    return ", training: asked" in scene.log("coordinator")


def run(scene: Scene, table: str, rounds: int = ROUNDS, kills: int = 0) -> float:
    """A run with one slow client; seconds from when the coordinator serves until all are home."""
    scene.folder.mkdir(parents=True, exist_ok=True)
    (scene.folder / "run.toml").write_text(table)
    scene.create(rounds, 3, EPOCHS, str(scene.folder / "run.toml"))
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    for name in (*QUICK, SLOW):
        scene.client(name, url, "--engine", "onnx")
    chance = random.Random(int(os.environ["SMIDGEN_FAULT_SEED"]))
    finished = f"finished, round {rounds}"
    began_s = time.monotonic()
    with slowed(scene.fleet.processes[SLOW].pid):
        for _ in range(kills):
            wait_for(partial(is_at_work, scene), scene.fleet.check, WITHIN_S)
            time.sleep(chance.uniform(0.0, 0.5))
            assert finished not in scene.log("coordinator"), "it was over before enough was killed"
            scene.kill("coordinator")
            assert scene.coordinator_json("verify")["is_sound"]
            scene.serve(port)
        wait_for(lambda: finished in scene.log("coordinator"), scene.fleet.check, WITHIN_S)
        took_s = time.monotonic() - began_s
    scene.finish(WITHIN_S)
    return took_s


def test_kill_9_between_and_within_versions_loses_nothing(scene: Scene) -> None:
    run(scene, TABLE, MANY_ROUNDS, KILLS)
    assert scene.coordinator_json("status")["round_index"] == MANY_ROUNDS
    with closing(Store(scene.folder / "store")) as store:
        (row,) = store.runs()
        events = list(store.events(row.run_id))
        state = replay(row.adapter_sha256, events)
        assert state.is_finished and not state.underway
        folded, stale = State(row.adapter_sha256), 0
        for event in events:
            step = folded.step
            if isinstance(event, StepClosed) and step is not None and step.works:
                stale = max([stale, *map(step.staleness, step.counted())])
                assert len(step.counted()) == 2
            folded = evolve(folded, event)
        assert to_plain(folded) == to_plain(state)
    assert "Traceback" not in scene.log("coordinator") + scene.log(SLOW)


def test_rounds_that_wait_for_nobody_are_over_sooner(
    scene: Scene, other_scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    patient_s = run(scene, "adaptive_deadline = false\nevaluate_every = 4\n")
    took_s = run(other_scene, TABLE)
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds beside a slow client: {patient_s:.1f} s synchronous, ", end="")
        print(f"{took_s:.1f} s asynchronous")
    assert took_s < patient_s


WHOLE = """
adaptive_deadline = false
evaluate_every = 2
[asynchronous]
buffer = 3
"""  # as many as there are devices: whoever comes first, a version is of the same updates


def test_a_buffer_of_all_devices_makes_the_bytes_of_an_undisturbed_run(
    scene: Scene, other_scene: Scene
) -> None:
    rounds, names = 6, (*QUICK, SLOW)

    def begun(one: Scene) -> str:
        (one.folder / "run.toml").write_text(WHOLE)
        one.create(rounds, len(names), EPOCHS, str(one.folder / "run.toml"))
        url = one.serve()
        for name in names:
            one.client(name, url, "--engine", "onnx")
        return url

    begun(other_scene)
    other_scene.finish()
    url = begun(scene)
    for round_index, victim in ((1, "a"), (2, "b"), (3, "c")):
        said = f"round {round_index} of {rounds}: train"
        wait_for(partial(lambda name, said: said in scene.log(name), victim, said))
        scene.kill(victim)
        scene.client(victim, url, "--engine", "onnx")
        if victim == "b":
            scene.kill("coordinator")
            scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()


IN_TURN = """
adaptive_deadline = false
evaluate_every = 3
[asynchronous]
buffer = 1
concurrency = 1
"""  # one device at a time: updates come in one order, whatever happens meanwhile


def test_one_device_at_a_time_makes_the_bytes_of_an_undisturbed_run(
    scene: Scene, other_scene: Scene
) -> None:
    rounds, names, chance = (
        MANY_ROUNDS,
        (*QUICK, SLOW),
        random.Random(int(os.environ["SMIDGEN_FAULT_SEED"])),
    )
    (scene.folder / "run.toml").write_text(IN_TURN)
    scene.create(rounds, len(names), EPOCHS, str(scene.folder / "run.toml"))
    # The same run twice: who is asked is drawn by its secret.
    shutil.copytree(scene.folder / "store", other_scene.folder / "store")
    other_scene.token, other_scene.run_id = scene.token, scene.run_id
    url = other_scene.serve()
    for name in names:
        other_scene.client(name, url, "--engine", "onnx")
    other_scene.finish(WITHIN_S)
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    for name in names:
        scene.client(name, url, "--engine", "onnx")
    asked = f"of {rounds}: train"
    wait_for(lambda: any(asked in scene.log(one) for one in names), scene.fleet.check)
    killed = 0
    for victim in ("coordinator", *names, "coordinator"):
        time.sleep(chance.uniform(0.0, 0.5))
        scene.kill(victim)
        is_over = any("is finished after" in scene.log(one) for one in names)
        killed += not is_over
        if victim == "coordinator":
            scene.serve(port)
        elif "is finished after" not in scene.log(victim):  # else nothing is left to wait for
            scene.client(victim, url, "--engine", "onnx")
    assert killed > 1, "the run was over before enough was killed"
    scene.finish(WITHIN_S)
    assert scene.adapter() == other_scene.adapter()


# Every version made once more from the journal and the updates it names. A coordinator removes
# updates once a version is made of them, so what was sent is kept here.
VERSIONS, HOMES = 40, ("a", "b", "c", "d")
PAIRS = """
adaptive_deadline = false
evaluate_every = 4
[asynchronous]
buffer = 2
"""


def killed_until(told: Future[Over], scene: Scene, port: int, chance: random.Random) -> Over:
    """What came of a run whose coordinator is killed a few times, whatever it is at."""
    for kills in range(KILLS + 1):
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
    (scene.folder / "run.toml").write_text(PAIRS)
    scene.create(VERSIONS, len(HOMES), 1, str(scene.folder / "run.toml"))
    shutil.copytree(scene.folder / "store", scene.folder / "kept")
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    with (
        closing(Store(scene.folder / "kept")) as kept,
        httpx.Client(base_url=url, timeout=30) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        devices = [enrol(http, scene.token, name) for name in HOMES]
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
        assert (made, state.round_index, told.ended) == (VERSIONS, VERSIONS, "rounds")
        assert kept.read(state.adapter_sha256) == served and stale > 0
    assert "Traceback" not in scene.log("coordinator")
