"""Runs with differential privacy over HTTP: what is released and said, and what a crash gives."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import smidgen
from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.serving.executor import aggregate
from smidgen.coordinator.serving.ledger import Live as LiveRun
from smidgen.coordinator.storage.runs import config_of, find_run, status_of
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import decode_adapter
from tests.command_line import smidgen as command
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device

Start = Callable[..., Live]
PRIVACY = Privacy(epsilon=8.0, clip=0.05, separation=2)


class Sent(Device):
    """Keeps what it sends: a store drops updates once a round is closed."""

    bodies: ClassVar[list[bytes]] = []

    def update(self, work: Work) -> bytes:
        self.bodies.append(super().update(work))
        return self.bodies[-1]


def through(live: Live, *names: str) -> None:
    """The whole run; then the store has all updates again."""
    devices = [Sent(one.http, one.key, one.enrolled) for one in live.join(*names)]
    others = [threading.Thread(target=one.until_finished) for one in devices]
    for one in others:
        one.start()
    for one in others:
        one.join()
    for body in Sent.bodies:
        live.store.put(body)


def closings(store: Store, run_id: str) -> list[tuple[State, StepClosed]]:
    """Each training step's end, and the state before it."""
    run, found = find_run(store, run_id), []
    state = State(run.adapter_sha256)
    for event in store.events(run_id):
        if isinstance(event, StepClosed) and state.step and state.step.opened.kind == "train":
            found.append((state, event))
        state = evolve(state, event)
    return found


def test_a_private_run_ends_within_its_budget_and_says_so(start: Start, tmp_path: Path) -> None:
    live = start(privacy=PRIVACY, rounds=4, min_clients=4, updates=Updates(up="int8"))
    through(live, "a", "b", "c", "d")
    run = find_run(live.store, live.run_id)
    config, ends = config_of(run), closings(live.store, live.run_id)
    assert len(ends) == 4
    noise = 0.0
    for state, event in ends:
        opened = state.step.opened if state.step else None
        assert opened is not None and len(opened.members) == 2  # the others rest
        assert opened.updates[0].startswith("dp:0.05:") and opened.norm_bound is None
        before, after = (
            decode_adapter(live.store.read(name))
            for name in (opened.adapter_sha256, event.adapter_sha256 or "")
        )
        moved = np.concatenate([(after[key] - before[key]).ravel() for key in sorted(after)])
        multiplier = float(opened.updates[0].split(":")[2])
        noise = np.hypot(np.hypot(1.0, 0.5), 0.5 * noise)  # e_t - n_(t-1) / 2, |e_t| = |c|
        assert moved.std() == pytest.approx(multiplier * noise * 0.05 / 2, rel=0.3)
        # Again from what the store has, as after a crash before the end was written.
        again = aggregate(live.store, LiveRun(run, config, state), state.step, 0.0)  # type: ignore[arg-type]
        assert again == replace(event, closed_at_s=0.0)
    told = status_of(live.store, run)["privacy"]
    assert told["epsilon"] == pytest.approx(8.0, abs=1e-3) and told["participations"] == 2
    store = ("--store", str(tmp_path / "store"), "--run", live.run_id)
    said = command("coordinator", "status", *store)
    line = "privacy: epsilon 8 of 8 at delta 1e-05 for each device (2 of 2 rounds, clip"
    assert line in said.stdout
    assert line in command("coordinator", "status", *store[:2]).stdout
    done = command("coordinator", "extend", *store, "--rounds", "9")
    assert done.exit_code == 0, done.stderr
    assert "privacy: epsilon 8 is used up by 4 of 4 devices (2 rounds each)" in done.stdout
    found = smidgen.export(tmp_path / "store", tmp_path / "out")
    card = (found.folder / "README.md").read_text()
    assert "- differential privacy: epsilon 8 of 8 at delta 1e-05 for each device" in card
    assert "no differential privacy was applied" not in card


def test_a_store_that_went_back_draws_other_noise_for_other_updates(start: Start) -> None:
    live = start(privacy=replace(PRIVACY, separation=1), rounds=1, min_clients=3)
    through(live, "a", "b", "c")
    run = find_run(live.store, live.run_id)
    [(state, event)] = closings(live.store, live.run_id)
    step = state.step
    assert step is not None
    fewer = replace(step, answers=dict(list(step.answers.items())[:2]))
    other = aggregate(live.store, LiveRun(run, config_of(run), state), fewer, 0.0)
    one, two = (
        decode_adapter(live.store.read(name or ""))
        for name in (event.adapter_sha256, other.adapter_sha256)
    )
    first = decode_adapter(live.store.read(step.opened.adapter_sha256))
    noises = [
        np.concatenate([(found[key] - first[key]).ravel() for key in sorted(first)])
        for found in (one, two)
    ]
    assert abs(np.corrcoef(noises)[0, 1]) < 6.0 / np.sqrt(noises[0].size)


def test_create_says_what_the_noise_comes_to_and_refuses_in_one_line(
    tmp_path: Path, hub_task: object
) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(
        'task = "agnews"\nrounds = 20\nmin_clients = 10\n'
        "[privacy]\nepsilon = 4\nclip = 0.2\ndelta = 1e-4\n"
    )
    store = str(tmp_path / "store")
    done = command("coordinator", "create", "--store", store, str(run_file))
    assert done.exit_code == 0, done.stderr
    assert (
        "privacy epsilon 0 of 4 at delta 0.0001 for each device (0 of 20 rounds, clip 0.2, "
        "noise multiplier 4.29); of 10 updates with " in done.stdout
    )
    assert "below 1 it is mostly noise: more devices or" in done.stdout
    told = command(
        "coordinator", "create", "--store", store, str(run_file), "--name", "b", "--json"
    )
    assert json.loads(told.stdout)["privacy"].startswith("epsilon 0 of 4")
    for wrong, said in (
        ("epsilon = 0", "privacy: epsilon: 0.01 to 100"),
        ("epsilon = 4\nepsilons = 2", "unknown key 'epsilons'"),
        ("", "`epsilon`"),
        ("epsilon = 4\nseparation = 40", "min_clients = 40 or more"),
    ):
        run_file.write_text(
            f'task = "agnews"\nname = "x"\nmin_clients = 10\n[privacy]\nclip = 0.2\n{wrong}\n'
        )
        refused = command("coordinator", "create", "--store", store, str(run_file))
        assert refused.exit_code == 2 and len(refused.stderr.splitlines()) == 1
        assert said in refused.stderr, refused.stderr
