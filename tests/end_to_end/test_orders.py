"""Orders to a run by command, through restarts and `kill -9` of the processes that follow them."""

import random
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from smidgen.coordinator.rounds.events import Extended, Paused, Unpaused
from smidgen.coordinator.rounds.orders import OrderKind
from smidgen.coordinator.storage.runs import add_order, open_orders, orders_of
from smidgen.coordinator.storage.store import Store
from tests.breadth import first_fast
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for


@pytest.mark.slow
@pytest.mark.fault
def test_a_run_paused_across_a_restart_of_both_sides_goes_on_to_the_same_bytes(
    scene: Scene, undisturbed_with: Callable[[str], bytes]
) -> None:
    expected = undisturbed_with("onnx")
    scene.create(2, len(CLIENTS), EPOCHS)
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    for name in CLIENTS:
        scene.client(name, url, "--engine", "onnx")
    wait_for(lambda: "round 1 of 2: train" in scene.log("a"), scene.fleet.check)
    assert scene.coordinator_json("pause")["done_at_s"] is not None
    for name in (*CLIENTS, "coordinator"):
        scene.kill(name)
    scene.serve(port)
    for name in CLIENTS:
        scene.client(name, url, "--engine", "onnx")
    wait_for(lambda: all("paused" in scene.log(name) for name in CLIENTS), scene.fleet.check)
    assert scene.coordinator_json("status")["phase"] == "paused"
    scene.coordinator_json("resume")
    scene.finish()
    assert scene.adapter() == expected


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("kills", first_fast([2, 6]))
def test_an_order_is_carried_out_once_however_often_the_coordinator_is_killed(
    scene: Scene, kills: int
) -> None:
    scene.create(2, 2, 1)
    draw, folder = random.Random(16), scene.folder / "store"
    for turn in range(kills):
        scene.serve()
        order(scene, "resume" if turn % 2 else "pause")
        order(scene, "extend", 3 + turn)
        time.sleep(draw.uniform(0.0, 1.2))
        scene.kill("coordinator")
    scene.serve()
    with closing(Store(folder)) as store:
        wait_for(lambda: not open_orders(store), scene.fleet.check)
        orders = orders_of(store, scene.run_id, None, 99)
        events = store.events(scene.run_id)
    assert len(orders) == 2 * kills and not any(one.refused for one in orders)
    assert [event.rounds for event in events if isinstance(event, Extended)] == [
        3 + turn for turn in range(kills)
    ]
    told = [type(event) for event in events if isinstance(event, Paused | Unpaused)]
    assert told == [Paused, Unpaused] * (kills // 2)
    scene.kill("coordinator")


def order(scene: Scene, kind: OrderKind, rounds: int | None = None) -> None:
    """Give an order without waiting for it, as a command does where nobody serves."""
    with closing(Store(scene.folder / "store")) as store:
        (run,) = store.runs()
        add_order(store, run, kind, rounds, time.time())


@pytest.mark.slow
def test_real_clients_end_in_the_bytes_of_a_run_without_the_one_that_is_forgotten(
    scene: Scene, undisturbed_with: Callable[[str], bytes]
) -> None:
    expected = undisturbed_with("onnx")
    scene.create(2, len(CLIENTS) + 1, EPOCHS)
    url = scene.serve()
    for name in (*CLIENTS, "c"):
        scene.client(name, url, "--engine", "onnx")
    wait_for(lambda: "round 2 of 2: train" in scene.log("a"), scene.fleet.check)
    (told,) = scene.coordinator_json("forget", "c")["runs"]
    assert told["done_at_s"] is not None and told["round_index"] == 0
    assert scene.fleet.processes.pop("c").wait(60) == 2
    assert "has revoked this device" in scene.log("c")
    scene.finish()
    assert scene.adapter() == expected
