"""Real clients of two coordinators on PostgreSQL and a bucket, whose leader and database die.

Each device ends with the bytes of the undisturbed run on SQLite, each acknowledged update counts,
and counts once. `SMIDGEN_FAULT_SEED` replays what happens when.
"""

import random
import re
import signal
import time
from contextlib import closing
from dataclasses import replace

import pytest

from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState
from smidgen.simulation.demo.setting import fleet
from tests.coordinator.servers import PASSWORD, Buckets, Postgres
from tests.coordinator.serving.many.processes import Coordinators, check_journal, coordinators
from tests.end_to_end.conftest import ANY_DISK, CLIENTS, EPOCHS, TEXTS, Scene, wait_for
from tests.end_to_end.disturbed.faults import Faults, FaultyRelay

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS, TIMES = 8, 6  # that are trained; that something dies, at most
NETWORK = Faults(cut=0.03, twice=0.03, late=0.02, overtaken=0.02)
LEADS = re.compile(r"^(\S+ \S+) .*carries the rounds on now", re.MULTILINE)
WEIGHTS = "adapter_model.safetensors"


def leader_of(many: Coordinators) -> int:
    """Who carries the rounds on, or did so last."""
    began = {port: LEADS.findall(log.read_text()) for port, log in many.logs.items()}
    return max(many.logs, key=lambda port: began[port][-1:])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> bytes:
    """The adapter of the same run by one coordinator on SQLite."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with fleet(folder / "logs", cores_each=1) as processes:
        scene = Scene(folder, tiny_base, processes)
        scene.create(ROUNDS, len(CLIENTS), EPOCHS)
        url = scene.serve()
        for name in CLIENTS:
            scene.client(name, url, "--engine", "onnx")
        scene.finish()
        return scene.adapter()


@pytest.mark.parametrize("dying", ["the leader", "the database", "both"])
def test_clients_of_a_shared_store_end_in_the_same_bytes_whoever_dies(
    scene: Scene,
    postgres: Postgres,
    buckets: Buckets,
    undisturbed: bytes,
    seed: int,
    dying: str,
) -> None:
    draw, died = random.Random(f"{seed} {dying}"), 0
    place = StorePlace(scene.folder / "store", postgres.create(), f"s3://{buckets.create()}/blobs")
    shared = ("--database", place.database, "--blobs", place.blobs)
    scene.create(ROUNDS, len(CLIENTS), EPOCHS, scene.fixed_deadlines(), *shared)
    with (
        coordinators(scene.folder, place, 2, *ANY_DISK) as many,
        FaultyRelay([*many.processes], NETWORK, seed) as relay,
    ):
        for name in CLIENTS:
            scene.client(name, relay.url, "--engine", "onnx")
        clients = [scene.fleet.processes[name] for name in CLIENTS]
        wait_for(lambda: relay.seen.requests > 4, scene.fleet.check)
        while died < TIMES and any(client.poll() is None for client in clients):
            time.sleep(draw.uniform(0.2, 1.5))
            port = leader_of(many)
            if dying != "the leader":
                postgres.stop(draw.choice((signal.SIGINT, signal.SIGQUIT)))
            if dying != "the database":
                many.end(port)
            time.sleep(draw.uniform(0.0, 1.5))
            if dying != "the leader":
                postgres.start()
            if dying != "the database":
                many.start(port)
            died += 1
        scene.finish()
        export = scene.smidgen(
            *("coordinator", "export", "--store", str(place.folder), *shared),
            *("--out", str(scene.folder / "adapter")),
        )
        assert (scene.folder / "adapter" / WEIGHTS).read_bytes() == undisturbed, export.stderr
    print(
        f"{dying}: died {died} times; {dict(relay.seen.faults)}; {dict(relay.seen.server_errors)}"
    )
    assert died > 1
    for name in CLIENTS:
        state = ClientState(scene.folder / "state" / name)
        assert (state.folder / "adapter" / WEIGHTS).read_bytes() == undisturbed
        assert not state.finished() and not any((state.folder / "steps").glob("*"))
    with closing(Store(replace(place, folder=scene.folder / "looker"))) as store:
        check_journal(store, relay.seen.acknowledged)
        body = b"".join(store.read(name) for name in store.blobs.present())
    verified = scene.smidgen("coordinator", "verify", "--store", str(place.folder), *shared)
    assert verified.returncode == 0, verified.stdout
    logs = "".join(log.read_text() for log in [*many.logs.values(), *scene.fleet.logs.iterdir()])
    texts = [text for some in TEXTS.values() for text in some]
    assert not [text for text in texts if text.encode() in body or text in logs]
    keys = [one.key for one in map(ClientState.identity, states(scene)) if one is not None]
    assert len(keys) == len(CLIENTS)
    assert not [word for word in (*keys, scene.token, PASSWORD) if word in logs]


def states(scene: Scene) -> list[ClientState]:
    return [ClientState(scene.folder / "state" / name) for name in CLIENTS]
