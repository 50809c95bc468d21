"""One enrolled device that means harm, over real HTTP: it does not end or decide a run."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.api.export import export
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.events import Answered, RolledBack, StepOpened
from smidgen.coordinator.storage.reports import accuracies, rows
from smidgen.coordinator.storage.runs import add_order
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    encode_adapter,
    encode_update,
)
from smidgen.edge_client.wire.training import Training
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device, wait_for

Start = Callable[..., Live]
Harm = Callable[[AdapterState], tuple[AdapterState, int]]


def huge(adapter: AdapterState) -> tuple[AdapterState, int]:
    return {key: np.full(one.shape, 3e38, np.float32) - one for key, one in adapter.items()}, 10


def long_noise(adapter: AdapterState) -> tuple[AdapterState, int]:
    draw = np.random.Generator(np.random.PCG64(1))
    return {k: draw.normal(0, 100, v.shape).astype(np.float32) for k, v in adapter.items()}, 10


def claimed(adapter: AdapterState) -> tuple[AdapterState, int]:
    return {key: np.full(one.shape, 0.1, np.float32) for key, one in adapter.items()}, 10**9


def trained(
    live: Live, devices: list[Device], hostile: Device, harm: Harm, labelled: int | None = 8
) -> AdapterState:
    """The adapter after a round in which one device does harm."""
    for device in [*devices, hostile]:
        work = device.work()
        device.report(Report(work.work_id, "done", 4, accuracy=0.5, labelled=labelled))
    for device in devices:
        device.do(device.work())
    work = hostile.work()
    delta, examples = harm(hostile.adapter(work))
    assert hostile.put(
        work.work_id, encode_update(Update(work.work_id, examples, delta))
    ).is_success
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    return decode_adapter(live.store.read(live.service.run(live.run_id).state.adapter_sha256))


@pytest.mark.parametrize("harm", [huge, long_noise, claimed])
def test_a_hostile_update_moves_the_adapter_no_further_than_its_bounds(
    start: Start, harm: Harm
) -> None:
    live = start(min_clients=4, rounds=1)
    *honest, hostile = live.join("a", "b", "c", "d")
    before = hostile.adapter(hostile.work())
    after = trained(live, honest, hostile, harm)
    [opened] = [
        one
        for one in live.store.journal(live.run_id)
        if isinstance(one, StepOpened) and one.kind == "train"
    ]
    assert opened.norm_bound is not None and opened.most_examples == 24
    moved = norm_of({key: after[key].astype(np.float64) - before[key] for key in after})
    assert moved <= opened.norm_bound


@pytest.mark.parametrize("labelled", [8, None])
@pytest.mark.parametrize("harm", [huge, long_noise, claimed])
def test_in_round_1_a_hostile_update_pulls_no_harder_than_three_honest_ones(
    start: Start, harm: Harm, labelled: int | None
) -> None:
    live = start(min_clients=4, rounds=1, training=Training(lr=0.1))  # the formula's bound is wide
    *honest, hostile = live.join("a", "b", "c", "d")
    before = hostile.adapter(hostile.work())
    after = trained(live, honest, hostile, harm, labelled)
    norms = [
        one.norm
        for one in live.store.journal(live.run_id)
        if isinstance(one, Answered) and one.norm
    ]
    moved = norm_of({key: after[key].astype(np.float64) - before[key] for key in after})
    print(f"one device of 4 moves round 1 by {moved / min(norms):.2f} honest updates")
    assert moved <= 3 * sorted(norms)[1]


def test_without_bounds_an_adapter_nobody_can_compute_with_is_not_taken(start: Start) -> None:
    live = start(min_clients=4, rounds=1, norm_bound=0, max_examples=0)
    *honest, hostile = live.join("a", "b", "c", "d")
    first = live.service.run(live.run_id).state.adapter_sha256
    trained(live, honest, hostile, huge)
    state = live.service.run(live.run_id).state
    assert state.adapter_sha256 == first
    assert state.trouble.startswith("round 1 was not taken: the new adapter holds numbers")


def test_one_false_evaluation_is_one_voice(start: Start) -> None:
    live = start(min_clients=3, rounds=1)
    *honest, hostile = live.join("a", "b", "c")
    for device in honest:
        device.report(Report(device.work().work_id, "done", 10, accuracy=0.1))
    hostile.report(Report(hostile.work().work_id, "done", 2**52, accuracy=1.0))
    wait_for(lambda: live.service.run(live.run_id).state.evaluated == 0)
    score = live.service.run(live.run_id).state.scores[0]
    assert score.median == 0.1 and score.accuracy == pytest.approx(32 / 50)
    assert accuracies(rows(live.store, live.run_id)) == {0: pytest.approx(32 / 50)}


def test_one_false_loss_spoils_no_card(start: Start, tmp_path: Path) -> None:
    live = start(task=Task("notes", kind="mlm"), min_clients=3, rounds=1)
    for device, loss in zip(live.join("a", "b", "c"), (1.0, 1.0, 3e38), strict=True):
        device.report(Report(device.work().work_id, "done", 10, loss, 0.5))
    wait_for(lambda: live.service.run(live.run_id).state.evaluated == 0)
    export(tmp_path / "store", tmp_path / "out")
    assert "| 0 | 14.392 | 0.500 |" in (tmp_path / "out" / "README.md").read_text()  # e^(8 / 3)
    over = live.service._over(live.service.run(live.run_id))
    assert over.losses == {0: pytest.approx(8 / 3)}


def test_an_operator_takes_a_served_run_back_and_its_devices_start_from_there(
    start: Start,
) -> None:
    live = start(min_clients=1, rounds=3)
    (device,) = live.join("a")
    for _ in range(3):
        device.do(device.work())
    work = device.work()
    assert (work.kind, work.round_index) == ("train", 2)
    run = live.service.run(live.run_id).run
    add_order(live.store, run, "rollback", 0, time.time())
    wait_for(lambda: live.service.run(live.run_id).state.trouble != "")
    again = device.work()
    assert again.adapter_sha256 == run.adapter_sha256 and again.work_id != work.work_id
    assert not device.put(work.work_id, device.update(work)).json()["accepted"]
    device.until_finished()


def test_an_adapter_that_nothing_can_compute_with_is_not_exported(
    start: Start, tmp_path: Path
) -> None:
    live = start(min_clients=1, rounds=1)
    with live.store.claiming():  # nothing is swept meanwhile
        name = live.store.put(encode_adapter({"a": np.full(3, 3e38, np.float32)}))
        event = RolledBack(0, name, "as an older store may be", 1.0)
        live.store.append(live.run_id, live.service.run(live.run_id).seq, event)
        with pytest.raises(WrongInput, match="--round 0: its adapter holds numbers"):
            export(tmp_path / "store", tmp_path / "out")
