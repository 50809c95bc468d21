"""Differential privacy's account: exact epsilons, budgets that pause, rounds between two counts."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.accounting import (
    Account,
    concentrated_epsilon,
    concentrated_multiplier,
    gaussian_epsilon,
    gaussian_multiplier,
)
from smidgen.coordinator.rounds.events import (
    Event,
    Extended,
    Finished,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
    Unpaused,
)
from smidgen.coordinator.rounds.machine import bounded, decide
from smidgen.coordinator.rounds.policies import FOR_PRIVACY
from smidgen.coordinator.rounds.scheduling.participation import Heard
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.reports import Failure
from smidgen.edge_client.wire.training import Labelling, Training
from tests.coordinator.rounds.test_machine import aggregated, answered

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
PRIVACY = Privacy(epsilon=8.0, clip=0.1)
TEXTS = replace(PRIVACY, unit="text")
CONFIG = RunConfig("run", TASK, rounds=6, min_clients=2, evaluate_every=0, privacy=PRIVACY)
# dp-accounting 0.6.0, get_epsilon_gaussian: multiplier, delta, epsilon.
PUBLISHED = (
    (0.1, 1e-10, 112.84032670423207),
    (0.5, 1e-5, 9.997256146434315),
    (1.0, 1e-10, 6.547924066864953),
    (1.0, 1e-5, 4.377178095681137),
    (2.0, 1e-3, 1.3522762448025527),
    (5.0, 1e-5, 0.7255217508577959),
    (100.0, 1e-10, 0.05309203337800965),
)


@pytest.mark.parametrize(("multiplier", "delta", "epsilon"), PUBLISHED)
def test_epsilon_is_that_of_dp_accounting(multiplier: float, delta: float, epsilon: float) -> None:
    assert gaussian_epsilon(multiplier, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_multiplier(epsilon, delta) == pytest.approx(multiplier, rel=1e-9)


# dp-accounting 0.6.0, RdpAccountant of 20,000 orders: multiplier, rounds, delta, epsilon of zCDP.
CONCENTRATED = (
    (1.0, 1, 1e-5, 4.728386985031955),
    (6.0, 20, 1e-5, 3.3840317405538984),
    (0.5, 1, 1e-6, 11.688596269726997),
    (10.0, 1, 1e-9, 0.5648933430907371),
    (2.0, 4, 1e-3, 3.5365619258078924),
)


@pytest.mark.parametrize(("multiplier", "rounds", "delta", "epsilon"), CONCENTRATED)
def test_noise_of_devices_adds_up_as_dp_accounting_has_it(
    multiplier: float, rounds: int, delta: float, epsilon: float
) -> None:
    one = multiplier / math.sqrt(rounds)
    assert concentrated_epsilon(one, delta) == pytest.approx(epsilon, rel=1e-6)
    assert concentrated_epsilon(one, delta) <= epsilon
    assert gaussian_epsilon(one, delta) < concentrated_epsilon(one, delta)
    assert concentrated_multiplier(epsilon, delta) == pytest.approx(one, rel=1e-6)


@given(st.floats(0.05, 50.0), st.integers(1, 200), st.sampled_from((1e-9, 1e-5)))
def test_rounds_under_masks_use_the_budget_up_and_no_more(
    epsilon: float, rounds: int, delta: float
) -> None:
    account = Account(Privacy(epsilon, 1.0, delta=delta), rounds, masked="int16", min_updates=3)
    assert account.most_participations == rounds
    assert account.epsilon(rounds) == pytest.approx(epsilon, rel=1e-6)
    assert account.multiplier > Account(account.privacy, rounds).multiplier
    assert account.step.split(":")[:2] == ["secure", "int16"] and account.is_distributed
    assert "added by the devices under secure aggregation" in str(account.spent({}))
    texts = Account(replace(account.privacy, unit="text"), rounds, masked="int16")
    assert not texts.is_distributed and texts.step.startswith("dp-text:")


@pytest.mark.parametrize(
    "end", [Finished(0.0, is_stopped=True), RolledBack(0, "first", "", 0.0, True)]
)
def test_a_sum_that_was_being_unmasked_counts_however_its_round_ends(end: Event) -> None:
    opened = StepOpened("train", 1, 1, "first", (("w1", "a"), ("w2", "b")), 0.0)
    state = evolve(replace(State("first"), evaluated=0), opened)
    for pair in opened.members:
        state = evolve(state, answered(*pair))
    unmask = replace(opened, kind="unmask", members=(("w3", "a"), ("w4", "b")))
    state = evolve(evolve(state, unmask), end)
    assert {name: one.counted for name, one in state.heard.items()} == {"a": 1, "b": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dp_accounting_itself_says_the_same(tmp_path: Path) -> None:
    """In an environment of its own: it wants older packages than ours."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "dp-accounting==0.6.0", "numpy<2.5"]
    if subprocess.run(install, check=False, capture_output=True).returncode:
        pytest.skip("dp-accounting cannot be installed here")
    pairs = [(10.0 ** (power / 4), 10.0**-digits) for power in range(-4, 9) for digits in (3, 5, 9)]
    program = (
        "import dp_accounting as one\n"
        f"print([float(one.get_epsilon_gaussian(m, d)) for m, d in {pairs}])\n"
        # k rounds of the Gaussian mechanism are one of its multiplier by sqrt(k); its RDP
        # accountant bounds that from above.
        "rdp = one.rdp.RdpAccountant()\n"
        "rdp.compose(one.GaussianDpEvent(6.0), 20)\n"
        "print(rdp.get_epsilon(1e-5))\n"
        "import numpy as np\n"
        "for z, k, delta in %r:\n"
        "    rdp = one.rdp.RdpAccountant(orders=1 + np.logspace(-3, 5, 20000))\n"
        "    rdp.compose(one.ZCDpEvent(0.5 / z**2), k)\n"
        "    print(rdp.get_epsilon(delta))\n"
    ) % ([one[:3] for one in CONCENTRATED],)
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True)
    theirs, bound, *sums = done.stdout.splitlines()[-2 - len(CONCENTRATED) :]
    assert [float(one) for one in sums] == pytest.approx([one[3] for one in CONCENTRATED])
    ours = [gaussian_epsilon(*pair) for pair in pairs]
    assert ours == pytest.approx([float(one) for one in theirs.strip("[]").split(",")], rel=1e-7)
    composed = gaussian_epsilon(6.0 / math.sqrt(20), 1e-5)
    assert composed < float(bound) < 1.15 * composed


@given(
    st.floats(0.05, 50.0), st.integers(1, 200), st.integers(1, 20), st.sampled_from((1e-9, 1e-5))
)
def test_the_planned_rounds_use_the_budget_up_and_no_more(
    epsilon: float, rounds: int, separation: int, delta: float
) -> None:
    privacy = Privacy(epsilon, 1.0, delta=delta, separation=separation)
    account = Account(privacy, rounds)
    most = account.most_participations
    assert most == -(-rounds // separation)
    assert account.epsilon(most) == pytest.approx(epsilon, rel=1e-6)
    assert account.epsilon(most + 1) > epsilon
    if separation == 1:
        ratio = account.signal_to_noise(100, 400)
        assert ratio == pytest.approx(100 / (account.multiplier * 20.0))
    texts = Account(replace(privacy, unit="text", separation=1), rounds, passes=4)
    assert texts.most_participations == rounds
    assert texts.multiplier == pytest.approx(2.0 * Account(texts.privacy, rounds).multiplier)
    assert texts.epsilon(rounds) == pytest.approx(epsilon, rel=1e-6)


def run(
    config: RunConfig, devices: int, operator: tuple[Event, ...] = ()
) -> tuple[State, list[tuple[int, tuple[str, ...]]]]:
    """Rounds until it is finished or pauses; who counted in each.

    Args:
        config: The run.
        devices: That are there.
        operator: What happens each time when nothing else is due, in turn.
    """
    state, counted = State("first"), list[tuple[int, tuple[str, ...]]]()
    names, orders = [f"d{index:02}" for index in range(devices)], list(operator)
    for turn in range(1000):
        event = decide(config, state, names, "secret", float(turn))
        if event is None:
            assert state.step is not None
            for pair in state.step.members.items():
                state = evolve(state, answered(*pair))
            continue
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            assert state.step is not None
            counted.append((state.step.opened.round_index, tuple(state.step.members.values())))
            event = replace(event, adapter_sha256=aggregated(state))
        state = evolve(state, event)
        if isinstance(event, Paused | Finished):
            if not orders:
                return state, counted
            state = evolve(state, orders.pop(0))
    raise AssertionError("it goes on for ever")


def test_a_budget_pauses_the_run_before_the_round_that_would_exceed_it() -> None:
    state, counted = run(replace(CONFIG, rounds=6), 3)
    assert state.is_finished and len(counted) == 6
    full = Account(PRIVACY, 6).spent(state.heard)
    assert full.epsilon == pytest.approx(8.0, abs=1e-3)
    longer = (Extended(9, 0.0),)
    state, counted = run(replace(CONFIG, rounds=6), 3, longer)
    assert state.is_paused and len(counted) == 6
    assert state.trouble.startswith("privacy: epsilon 8 is used up by 3 of 3 devices (6 rounds")
    state, counted = run(CONFIG, 3, (*longer, Unpaused(0.0), Unpaused(0.0)))
    assert state.is_paused and len(counted) == 6  # whoever resumes it, hears it again


def test_who_is_not_asked_for_privacy_s_sake_is_told_so() -> None:
    config = replace(CONFIG, privacy=replace(PRIVACY, separation=2))
    state = replace(State("first"), evaluated=0)
    for turn in range(9):
        event = decide(config, state, ["a", "b", "c", "d"], "secret", float(turn))
        if isinstance(event, StepOpened) and event.round_index == 2:
            assert [(one.reason, one.count) for one in event.passed] == [(FOR_PRIVACY, 2)]
            return
        if event is None:
            assert state.step is not None
            for pair in state.step.members.items():
                state = evolve(state, answered(*pair))
            continue
        if isinstance(event, StepClosed):
            event = replace(event, adapter_sha256=aggregated(state))
        state = evolve(state, event)
    raise AssertionError("no second round")


def test_new_devices_go_on_where_others_have_used_their_budget_up() -> None:
    config = replace(CONFIG, rounds=4, fraction=0.5)
    state, counted = run(config, 4, (Extended(7, 0.0),))
    times = Counter(name for _, members in counted for name in members)
    assert state.is_finished and max(times.values()) <= Account(PRIVACY, 4).most_participations


@given(st.integers(1, 6), st.integers(6, 20), st.integers(1, 3), st.sampled_from((0.2, 0.7, 1.0)))
def test_devices_rest_between_two_rounds_that_they_count_in(
    separation: int, devices: int, least: int, fraction: float
) -> None:
    privacy = replace(PRIVACY, separation=separation, noise_multiplier=50.0)
    needed = max(separation * least, 1)
    if devices < needed or int(fraction * needed + 1e-9) < least:
        return
    config = replace(
        CONFIG,
        rounds=12,
        privacy=privacy,
        min_clients=needed,
        min_updates=least,
        fraction=fraction,
    )
    state, counted = run(config, devices)
    assert state.is_finished and len(counted) == 12
    last: dict[str, int] = {}
    for round_index, members in counted:
        for name in members:
            assert round_index - last.get(name, -separation) >= separation
            last[name] = round_index


def test_as_few_devices_as_separation_needs_come_to_the_end_of_a_run() -> None:
    config = replace(CONFIG, privacy=replace(PRIVACY, separation=3), min_clients=6, min_updates=2)
    state, counted = run(config, 6)
    assert state.is_finished and [len(members) for _, members in counted] == [2] * 6


def test_devices_that_all_rest_pause_the_run_with_the_reason() -> None:
    config = replace(
        CONFIG, privacy=replace(PRIVACY, separation=2, noise_multiplier=50.0), min_clients=2
    )
    state, names = State("first"), ["d0", "d1"]
    for turn in range(100):
        event = decide(config, state, names, "secret", float(turn))
        if isinstance(event, Paused):
            assert event.reason.startswith("privacy: 1 of 1 devices with budget left rest, separ")
            return
        if event is None:
            assert state.step is not None
            for pair in state.step.members.items():
                state = evolve(state, answered(*pair))
            continue
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            names = names[:1] if state.round_index == 0 else names
            heard = {key: one for key, one in state.heard.items() if key == names[0]}
            state = replace(state, heard=heard)
            event = replace(event, adapter_sha256=aggregated(state))
        state = evolve(state, event)
    raise AssertionError("it goes on for ever")


def test_a_run_that_went_back_still_counts_what_was_released() -> None:
    state, _ = run(CONFIG, 3)
    state = evolve(state, RolledBack(0, "first", "its operator ordered it", 0.0, True))
    assert Account(PRIVACY, 6).spent(state.heard).participations == 6


def stuck(config: RunConfig, state: State, names: Sequence[str]) -> Event | None:
    """What is due an hour later, once everybody who was asked has failed, or nobody was."""
    for _ in range(50):
        event = decide(config, state, names, "secret", 3600.0)
        if isinstance(event, Paused) or (isinstance(event, StepOpened) and event.kind != "train"):
            return event
        if event is None:
            return None
        state = evolve(state, event)
        for pair in state.step.members.items() if state.step else ():
            state = evolve(state, answered(*pair, "failed"))
    return None


@pytest.mark.parametrize("privacy", [PRIVACY, TEXTS])
def test_a_run_whose_devices_have_no_texts_asks_again_as_others_do(privacy: Privacy) -> None:
    config = replace(CONFIG, privacy=privacy)
    state = replace(State("first"), texts={"a": 0, "b": 0}, evaluated=0)
    event = stuck(config, state, ["a", "b"])
    assert isinstance(event, StepOpened) and event.kind == "evaluate"


def test_failed_attempts_of_texts_cost_nothing_and_missed_ones_do() -> None:
    config = replace(CONFIG, privacy=TEXTS, rounds=1)
    state = replace(State("first"), evaluated=0)
    opened = decide(config, state, ["a", "b"], "secret", 0.0)
    assert isinstance(opened, StepOpened)
    state = evolve(state, opened)
    assert {one.asked for one in state.heard.values()} == {1}
    for pair in opened.members:
        failed = evolve(state, answered(pair[0], pair[1], "failed"))
        assert failed.heard[pair[1]].asked == 0
    missed = decide(config, state, ["a", "b"], "secret", 1e6)  # nobody has answered in time
    assert isinstance(missed, Paused) and missed.reason.startswith("privacy: epsilon 8 is used up")


def test_devices_that_left_do_not_keep_a_run_waiting() -> None:
    heard = {name: Heard(1, 4, counted=6, asked=6) for name in "ab"}
    heard |= {name: Heard(0, 0) for name in "xy"}
    left: dict[str, Failure] = dict.fromkeys("xy", "revoked")
    state = replace(State("first"), evaluated=0, heard=heard, left=left, round_index=6, rounds=9)
    event = decide(CONFIG, state, ["a", "b"], "secret", 1e6)
    assert isinstance(event, Paused) and "used up by 2 of 2 devices" in event.reason


def test_updates_of_private_texts_are_bounded_as_others_are() -> None:
    state = replace(State("first"), evaluated=0, texts=dict.fromkeys("abc", 4))
    adapter = {"w": np.ones(9, np.float32)}
    for privacy, is_bounded in ((None, True), (TEXTS, True), (PRIVACY, False)):
        config = replace(CONFIG, privacy=privacy)
        opened = decide(config, state, ["a", "b", "c"], "secret", 0.0)
        assert isinstance(opened, StepOpened)
        found = bounded(opened, config, state, lambda: adapter)
        assert (found.norm_bound is not None) is is_bounded
    replace(CONFIG, privacy=TEXTS, norm_bound=1.0)
    median = replace(CONFIG.learning, mean="median")
    replace(CONFIG, privacy=TEXTS, min_updates=3, min_clients=3, learning=median)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"epsilon": 0.0}, "epsilon: 0.01 to 100"),
        ({"epsilon": 1e9}, "epsilon: 0.01 to 100"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"clip": 0.0}, "clip: above 0"),
        ({"clip": float("inf")}, "clip"),
        ({"delta": 0.5}, "delta"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"separation": 0}, "separation"),
        ({"unit": "user"}, "unit"),
        ({"unit": "text", "separation": 2}, "separation: of unit device"),
    ],
)
def test_settings_that_protect_nobody_are_refused(wrong: dict[str, Any], names: str) -> None:
    with pytest.raises(WrongInput, match=f"privacy: {names}"):
        replace(PRIVACY, **wrong)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {
                "learning": replace(CONFIG.learning, mean="median"),
                "min_updates": 3,
                "min_clients": 3,
            },
            "mean = median",
        ),
        ({"learning": replace(CONFIG.learning, selection="utility")}, "selection = utility"),
        ({"labelling": Labelling()}, "labelling"),
        (
            {
                "updates": Updates(secure_aggregation="int8"),
                "privacy": replace(PRIVACY, separation=2),
                "min_updates": 3,
                "min_clients": 6,
            },
            "separation with secure_aggregation",
        ),
        ({"norm_bound": 1.0}, "norm_bound = 1.0"),
        ({"max_examples": 5}, "max_examples = 5"),
        ({"updates": Updates(steps=("sign",))}, "steps = sign"),
        (
            {"training": Training(optimizer="sgd", lr=0.1, scaffold=True)},
            "scaffold",
        ),
        ({"asynchronous": Asynchronous()}, "leave asynchronous out"),
        ({"privacy": replace(PRIVACY, delta=0.01), "min_clients": 100}, "not below 1 / min_cl"),
        ({"privacy": replace(PRIVACY, separation=3)}, "min_clients = 3 or more"),
        ({"privacy": replace(PRIVACY, noise_multiplier=0.1)}, "0.1 is too small for one round"),
        (
            {"privacy": replace(PRIVACY, separation=2), "adapter": "lora:8+rolora"},
            "separation with adapter lora:8.rolora",
        ),
        ({"privacy": TEXTS, "adapter": "lora:8+core"}, "adapter = lora:8.core"),
        ({"privacy": TEXTS, "training": Training(adjusted=True)}, "adjusted"),
        ({"privacy": TEXTS, "training": Training(least_samples=9)}, "least_samples = 9"),
        ({"privacy": TEXTS, "adapter": "lora:8+generator"}, "adapter = lora:8.generator"),
    ],
)
def test_what_the_account_does_not_hold_for_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"privacy.*{said}"):
        replace(CONFIG, **settings)
