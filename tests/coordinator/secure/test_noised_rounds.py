"""Differential privacy under secure aggregation, over HTTP: what is released, said and refused."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.rounds.learning.unmasking import places_of, sum_of
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.serving.executor import aggregate
from smidgen.coordinator.serving.ledger import Live as LiveRun
from smidgen.coordinator.storage.runs import config_of, find_run, status_of
from smidgen.edge_client.codecs import shaped
from smidgen.edge_client.updates.masks import Member, Ring, public_key
from smidgen.edge_client.updates.privacy import DeviceNoise, Privacy
from smidgen.edge_client.updates.registry import made
from smidgen.edge_client.updates.secure_sum import NUMBERS, SecureSum
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.updates.states import multiplier_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.tensors import Update, decode_adapter, decode_update, shapes_of
from smidgen.edge_client.wire.training import Training
from tests.command_line import smidgen as command
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for
from tests.coordinator.secure.draws import Sent, mean_of, opened
from tests.coordinator.secure.members import MaskedDevice, members_of
from tests.coordinator.secure.test_secure_rounds import NAMES, rounds_of, through
from tests.edge_client.updates.masked import asked

Start = Callable[..., Live]
PRIVACY = Privacy(epsilon=8.0, clip=0.05)
NOISED = {
    "updates": Updates(secure_aggregation="int16"),
    "privacy": PRIVACY,
    "min_updates": 3,
    "min_clients": 5,
}


def step_of(state: State) -> SecureSum:
    assert state.masked is not None
    (step,) = (one for one in made(state.masked.opened.updates) if isinstance(one, SecureSum))
    return step


def noise_of(live: Live, members: list[MaskedDevice], at: tuple[State, StepClosed]) -> np.ndarray:
    """A round's noise by what is promised for the mean, flat."""
    state, event = at
    assert state.masked is not None and state.step is not None
    names = [name for name, _ in state.masked.updates()]
    index, step = state.step.opened.round_index, step_of(state)
    sent = [one.plain[index][1] for one in members if one.device_id in names]
    before, after = (
        decode_adapter(live.store.read(name))
        for name in (state.masked.opened.adapter_sha256, event.adapter_sha256 or "")
    )
    moved = np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])
    exact = np.zeros(moved.size)
    for delta in sent:
        flat = np.concatenate([delta[name].ravel().astype(float) for name in sorted(delta)])
        exact += flat * min(1.0, PRIVACY.clip / np.linalg.norm(flat))
    assert len(names) >= step.fewest(len(state.masked.members))
    found: np.ndarray = (moved * len(names) - exact) / (step.multiplier * PRIVACY.clip)
    return found


def test_each_round_has_the_noise_of_who_is_left(start: Start) -> None:
    live = start(rounds=3, **NOISED)
    members = members_of(live.enrol(*NAMES))
    members[1].ends_at, members[2].ends_after = (2,), (3,)
    through(live, members)
    ends = rounds_of(live)
    assert [event.refused for _, event in ends] == ["", "", ""]
    for at, left in zip(ends, (5, 4, 5), strict=True):
        noise = noise_of(live, members, at)
        step = step_of(at[0])
        honest = step.fewest(5) - step.colluding(5)
        near = math.sqrt(left / honest)  # what was promised, and that of who is left beyond it
        assert noise.std() == pytest.approx(near, rel=5.0 / math.sqrt(2 * noise.size))
        assert noise.std() > 1.0 - 5.0 / math.sqrt(2 * noise.size)
    run = find_run(live.store, live.run_id)
    told = status_of(live.store, run)["privacy"]
    assert told["participations"] == 3 and told["is_distributed"]
    assert told["epsilon"] == pytest.approx(8.0, abs=1e-3)
    bodies = [decode_update(body) for one in members for body in one.bodies.values()]
    assert all(not one.delta for one in bodies) and any(
        NUMBERS in (one.coded or {}) for one in bodies
    )


def test_the_same_bytes_again_after_a_crash(start: Start) -> None:
    live = start(rounds=1, **NOISED)
    members = members_of(live.enrol(*NAMES))
    through(live, members)
    run = find_run(live.store, live.run_id)
    [(state, event)] = rounds_of(live)
    for one in members:
        for body in one.bodies.values():
            live.store.put(body)
    again = aggregate(live.store, LiveRun(run, config_of(run), state), state.step, 0.0)  # type: ignore[arg-type]
    assert again == replace(event, closed_at_s=0.0)


def test_a_run_over_http_ends_in_the_bytes_of_its_rounds_in_one_process(start: Start) -> None:
    live = start(rounds=2, **NOISED)
    members = members_of(live.enrol(*NAMES))
    members[3].ends_at = (2,)
    through(live, members)
    secret, by_id = (
        find_run(live.store, live.run_id).secret,
        {one.device_id: one for one in members},
    )
    for state, event in rounds_of(live):
        assert state.masked is not None
        opened, here = state.masked.opened, {name for name, _ in state.masked.updates()}
        places = {name: at for at, name in enumerate(places_of(opened, secret))}
        keys = tuple(public_key(by_id[name].secret) for name in places)
        at = opened.round_index, opened.attempt, opened.opened_at_s
        ring = Ring(live.run_id, *at, keys)
        updates = dict[int, Update]()
        by_place = {places[one.device_id]: one for one in members if one.device_id in here}
        for place, one in sorted(by_place.items()):
            step = step_of(state)
            step.take(ring.body)
            texts, delta = one.plain[ring.round_index]
            context = DeviceContext(Training(), ring.round_index, None, 0, one.secret, ring.run_id)
            updates[place] = step.outgoing(Update("w", texts, delta), context)
        given = {
            place: Member(ring, one.secret).answer(asked(ring, place, updates))
            for place, one in by_place.items()
        }
        before, after = (
            decode_adapter(live.store.read(name))
            for name in (opened.adapter_sha256, event.adapter_sha256 or "")
        )
        mean = sum_of(step_of(state), ring, sorted(updates.items()), given, shapes_of(before))
        for name in mean:
            assert np.array_equal(after[name], before[name] + mean[name])


def test_a_run_has_one_step_that_clips_adds_noise_and_masks(start: Start) -> None:
    live = start(rounds=3, **NOISED)
    config = live.service.run(live.run_id).config
    steps = made(config.update_steps)
    assert [one.name for one in steps] == ["secure"]
    assert not any(isinstance(one, DeviceNoise) for one in steps)
    account = config.account
    assert account is not None
    assert (
        multiplier_of(config.update_steps) == account.multiplier
    )  # what `--limits noise` is held against


def test_a_round_of_fewer_devices_whose_noise_has_no_room_pauses_the_run(start: Start) -> None:
    """int8 has room for the noise of nine devices' rounds, and not for that of five."""
    privacy = replace(PRIVACY, noise_multiplier=5.0)
    updates = Updates(secure_aggregation="int8")
    live = start(rounds=2, min_clients=9, min_updates=3, privacy=privacy, updates=updates)
    members = members_of(live.enrol(*"abcdefghi"))
    for one in members:
        one.join()
    for kind in ("evaluate", "train", "unmask"):
        for index, one in enumerate(members):
            work = one.work()
            if kind == "unmask" and index >= 5:
                one.report(Report(work.work_id, "failed", failure="internal", is_leaving=True))
            else:
                one.do(work)
    for one in members[:5]:
        one.do(one.work())  # the evaluation between the rounds
    wait_for(lambda: live.service.run(live.run_id).state.is_paused)
    assert "does not fit in 127 levels" in live.service.run(live.run_id).state.trouble


def test_create_says_what_it_comes_to_and_refuses_what_has_no_room(tmp_path: Path) -> None:
    run_file, store = tmp_path / "run.toml", str(tmp_path / "store")
    said = """task = "agnews"
adapter = "lora:2"
rounds = 4
min_clients = {}
min_updates = {}
[updates]
secure_aggregation = "{}"
[privacy]
epsilon = 8.0
clip = 0.5
"""
    run_file.write_text(said.format(60, 30, "int16"))
    done = command("coordinator", "create", "--store", store, str(run_file))
    assert done.exit_code == 0, done.stderr
    assert "added by the devices under secure aggregation" in done.stdout
    assert "of 60 updates, the noise of 36 of which is counted on, with" in done.stdout
    assert "times as long as its noise" in done.stdout
    run_file.write_text(said.format(5, 3, "int4"))
    done = command("coordinator", "create", "--store", store, "--name", "other", str(run_file))
    assert (
        done.exit_code == 2 and "does not fit in 7 levels: take secure_aggregation" in done.stderr
    )
    told = command("coordinator", "status", "--store", store, "--json")
    assert told.exit_code == 0 and "other" not in told.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_devices_of_which_many_go_add_up_to_the_bit(start: Start) -> None:
    """Three in ten are gone before their update, as many of the rest before they unmask."""
    live = start(rounds=1, **NOISED | {"min_clients": 200})
    members = members_of(live.enrol(*(f"d{number}" for number in range(200))))
    for number, one in enumerate(members):
        one.ends_at, one.ends_after = ((1,), ()) if number % 10 < 3 else ((), (1,)[number % 3 :])
        one.join()
    with ThreadPoolExecutor(8) as pool:
        for _ in ("evaluate", "train", "unmask", "evaluate"):
            list(pool.map(work_once, members))
    [(state, event)] = rounds_of(live)
    assert event.refused == "" and state.masked is not None
    names = places_of(state.masked.opened, find_run(live.store, live.run_id).secret)
    by_id = {one.device_id: one for one in members}
    keys = tuple(public_key(by_id[name].secret) for name in names)
    at = state.masked.opened
    ring = Ring(live.run_id, at.round_index, at.attempt, at.opened_at_s, keys)
    sent = {
        names.index(device_id): Sent(
            device_id, ring, by_id[device_id].secret, decode_update(by_id[device_id].bodies[work])
        )
        for work, device_id in state.masked.members.items()
        if work in by_id[device_id].bodies
    }
    assert len(sent) == 140
    before, after = (
        decode_adapter(live.store.read(name))
        for name in (at.adapter_sha256, event.adapter_sha256 or "")
    )
    step, size = step_of(state), sum(one.size for one in before.values())
    whole = [numbers for _, numbers in opened(sent, step.bits, size)]
    mean = shaped(mean_of(whole, step, 200, size), shapes_of(before))
    assert all(np.array_equal(after[name], one + mean[name]) for name, one in before.items())
    told = status_of(live.store, find_run(live.store, live.run_id))["privacy"]
    assert (told["participations"], told["epsilon"]) == (1, pytest.approx(8.0, abs=1e-3))
    noise = noise_of(live, members, (state, event))
    promised = math.sqrt(140 / (step.fewest(200) - step.colluding(200)))
    assert noise.std() == pytest.approx(promised, rel=5.0 / math.sqrt(2 * noise.size))


def work_once(device: MaskedDevice) -> None:
    if (given := device.next(0.0 if device.bodies else 5.0).work) is not None:
        device.do(given)
