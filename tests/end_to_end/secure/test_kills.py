"""Real clients in a run with secure aggregation, killed in training and in unmasking."""

import random
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.rounds.learning.unmasking import places_of, step_in
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.runs import config_of, find_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.codecs import shaped
from smidgen.edge_client.updates.masks import public_key, ring_in
from smidgen.edge_client.updates.secure_sum import NUMBERS, SEALS
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import Update, decode_adapter, decode_update, shapes_of
from smidgen.simulation.demo.setting import fleet
from tests.coordinator.secure.draws import Sent, is_seen, mean_of, opened, reused
from tests.end_to_end.conftest import EPOCHS, Scene, wait_for
from tests.end_to_end.disturbed.test_fleet_faults import (
    CLIENTS,
    KILLS,
    LATE_ENOUGH,
    LONGEST_PAUSE_S,
    ROUNDS,
    kill_one,
    port_of,
    start,
)

NAMES = ("a", "c", "d", "e")
ENGINES = {"a": "torch"}  # the others' is onnx
SECURE = """
adaptive_deadline = false
min_updates = 3
[updates]
secure_aggregation = "int8"
"""


def begun(scene: Scene) -> str:
    file = scene.folder / "secure.toml"
    file.write_text(SECURE)
    scene.create(3, len(NAMES), EPOCHS, str(file))
    url = scene.serve()
    for name in NAMES:
        scene.client(name, url, "--engine", ENGINES.get(name, "onnx"))
    return url


def killed(scene: Scene, url: str) -> None:
    """Two clients and the coordinator die, each in another round, and come back."""
    for said, victim in (("round 1 of 3: train", "a"), ("round 2 of 3: unmask", "c")):
        wait_for(partial(lambda name, said: said in scene.log(name), victim, said))
        scene.kill(victim)
        scene.client(victim, url, "--engine", ENGINES.get(victim, "onnx"))
    wait_for(lambda: "round 3 of 3: unmask" in scene.log("d"))
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()


@pytest.mark.fault
def test_kill_9_changes_no_byte_of_a_masked_sum(scene: Scene, other_scene: Scene) -> None:
    begun(other_scene)
    other_scene.finish()
    url = begun(scene)
    killed(scene, url)
    assert scene.adapter() == other_scene.adapter()
    known = {Path(scene.folder / "state" / name / "noise.key").read_bytes() for name in NAMES}
    assert len(known) == len(NAMES)  # masks of which nothing is left in the sum
    told = scene.coordinator_json("status")
    assert told["phase"] == "finished" and "was not taken" not in str(told)


@pytest.mark.slow
@pytest.mark.fault
def test_after_kill_9_nobody_adds_other_noise_to_the_same_round(scene: Scene) -> None:
    file = scene.folder / "noised.toml"
    file.write_text(SECURE.replace("int8", "int16") + "[privacy]\nepsilon = 8.0\nclip = 0.5\n")
    scene.create(3, len(NAMES), EPOCHS, str(file))
    url = scene.serve()
    watch = Masked(scene.folder)
    watch.start()
    for name in NAMES:
        scene.client(name, url, "--engine", ENGINES.get(name, "onnx"))
    killed(scene, url)
    watch.end()
    assert len(watch.hidden) == 3 * len(NAMES)  # one update a device and round, masked once
    assert {len(numbers) for numbers in watch.hidden.values()} == {1}
    told = scene.coordinator_json("status")
    assert told["phase"] == "finished" and "was not taken" not in str(told)
    assert "adds its share of noise" in scene.log("a")


class Masked(threading.Thread):
    """Looks all the time at what lies masked in outboxes and in the store.

    Attributes:
        hidden: Numbers by the seal of their own mask.
        updates: Those that were masked, each once.
        files: What the store held by SHA-256, of the rest.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.hidden = defaultdict[bytes, set[bytes]](set)
        self.updates, self.files = dict[bytes, Update](), dict[str, bytes]()
        self._folder, self._is_over = folder, threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            outboxes = (self._folder / "state").glob("*/outbox/*.st")
            blobs = (self._folder / "store" / "blobs").glob("**/*")
            for path in (*outboxes, *(one for one in blobs if one.name not in self.files)):
                with suppress(OSError, WireError):  # it may go at any moment; most are no updates
                    body = path.read_bytes()
                    if path.suffix != ".st":
                        self.files[path.name] = body
                    coded = (update := decode_update(body)).coded or {}
                    if SEALS in coded:
                        numbers = coded[NUMBERS].tobytes()
                        self.hidden[coded[SEALS][0].tobytes()].add(numbers)
                        self.updates[numbers] = update

    def end(self) -> None:
        self._is_over.set()
        self.join()


NOISE = "[privacy]\nepsilon = 8.0\nclip = 0.5\n"


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(1200 + 5 * KILLS)
@pytest.mark.parametrize("noise", ["", NOISE], ids=["masks", "noise"])
def test_many_kills_change_no_byte_and_no_mask_or_noise_hides_two_updates(
    tmp_path: Path, tiny_base: Base, noise: str
) -> None:
    """With noise, which is drawn by what each device alone knows, the bytes are those of the sums
    of what devices sent."""
    chance, kills, runs, expected = random.Random(7), Counter[str](), 0, b""
    hidden, sums = list[dict[bytes, set[bytes]]](), 0
    while sum(kills.values()) < KILLS:
        runs += 1
        with fleet(tmp_path / f"{runs}" / "logs", cores_each=1) as processes:
            scene = Scene(tmp_path / f"{runs}", tiny_base, processes)
            file = scene.folder / "secure.toml"
            file.write_text(SECURE.replace("int8", "int16") + noise if noise else SECURE)
            scene.create(ROUNDS, len(CLIENTS), 8, "--deadline", "3600", str(file))
            url = scene.serve()
            watch = Masked(scene.folder)
            watch.start()
            for name in CLIENTS:
                start(scene, name, url)
            wait_for(partial(has_begun, scene), scene.fleet.check)
            while (expected or noise) and sum(kills.values()) < KILLS and not is_late(scene):
                time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
                scene.fleet.check()
                kills[kill_one(scene, url, port_of(url), chance)] += 1
            scene.finish(600.0)
            watch.end()
            hidden.append(watch.hidden)
            if noise:
                sums += sums_made_again(scene, watch)
            else:  # the first run, in which nobody is killed, says what is expected
                expected = expected or scene.adapter()
                assert scene.adapter() == expected
            assert "was not taken" not in scene.log("coordinator")
    seen = [numbers for one in hidden for numbers in one.values()]
    assert all(len(numbers) == 1 for numbers in seen) and len(seen) > ROUNDS * runs
    assert sum(kills.values()) >= KILLS
    assert not noise or sums > ROUNDS * runs / 2
    print(f"{dict(kills)} in {runs} runs, {len(seen)} updates, {sums} sums made again")


def sums_made_again(scene: Scene, watch: Masked) -> int:
    """Rounds whose adapter is, to the bit, the one before and the mean of what devices sent.

    And nobody used noise twice. Of rounds whose files were all seen; a device's update is of one
    work, whose step names its ring.
    """
    with closing(Store(scene.folder / "store")) as store:
        events, run = store.events(scene.run_id), find_run(store, scene.run_id)
    known = [ClientState(scene.folder / "state" / name).secret(scene.run_id) for name in CLIENTS]
    by_key, works = (
        {public_key(one): one for one in known},
        {one.work_id: one for one in watch.updates.values()},
    )
    step = step_in(config_of(run).update_steps)
    assert step is not None and len(works) == len(watch.updates)  # of each work one
    sent, made, state = list[Sent](), 0, State(run.adapter_sha256)
    for event in events:
        before, state = state, evolve(state, event)
        if not isinstance(event, StepClosed) or before.masked is None:
            continue
        trained = before.masked.opened
        names = trained.handed(""), trained.adapter_sha256, event.adapter_sha256 or ""
        is_whole = all(work in works for work, _ in trained.members)
        if not is_whole or not all(name in watch.files for name in names):
            continue
        ring = ring_in(watch.files[names[0]])
        first, second = (decode_adapter(watch.files[name]) for name in names[1:])
        places, size = places_of(trained, run.secret), sum(one.size for one in first.values())
        here = dict[int, Sent]()
        for work, device_id in trained.members:
            secret = by_key[ring.keys[places.index(device_id)]]
            one = Sent(device_id, ring, secret, works[work])
            here[one.place] = one
        assert is_seen(step, len(here), size)
        sent += here.values()
        whole = [numbers for _, numbers in opened(here, step.bits, size)]
        mean = shaped(mean_of(whole, step, len(here), size), shapes_of(first))
        assert all(np.array_equal(second[name], one + mean[name]) for name, one in first.items())
        made += 1
    assert reused(sent, step, size) == []
    return made


def has_begun(scene: Scene) -> bool:
    return "round 1 of" in scene.log("coordinator")


def is_late(scene: Scene) -> bool:
    return LATE_ENOUGH in scene.log("coordinator")
