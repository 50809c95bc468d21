"""The population's control variate: a law over any rounds, and what does not count."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.coordinator.rounds.admission import Refusal, check_update, counted
from smidgen.coordinator.rounds.bounds import norm_of
from smidgen.coordinator.rounds.events import Answered, RolledBack, StepClosed, StepOpened
from smidgen.coordinator.rounds.learning.memory import Memory, part_of
from smidgen.coordinator.rounds.learning.server_update import STEPS, AdmittedUpdate, learn
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.clip import LARGEST
from smidgen.edge_client.updates.scaffold import Scaffold, change_of
from smidgen.edge_client.updates.step import ServerContext
from smidgen.edge_client.wire.tensors import AdapterState, Update, encode_update
from smidgen.edge_client.wire.training import Labelling, Training
from tests.coordinator.rounds.test_machine import CONFIG

TRAINING = Training(epochs=2, batch=4, lr=0.5, optimizer="sgd", scaffold=True)
SCHEDULE = replace(CONFIG, training=TRAINING)
DEVICES = ("a", "b", "c")
MOVES = arrays(np.float32, (2,), elements=st.floats(-4, 4, width=32))
ROUNDS = st.lists(st.fixed_dictionaries(dict.fromkeys(DEVICES, MOVES)), min_size=1, max_size=4)


def opened(round_index: int = 1, norm_bound: float | None = None) -> StepOpened:
    members = tuple((f"w{name}", name) for name in DEVICES)
    known = ("train", round_index, 1, "sha", members, 0.0)
    told = {"population": len(DEVICES), "norm_bound": norm_bound, "updates": ("scaffold",)}
    return StepOpened(*known, **told)  # type: ignore[arg-type]


CONTROL = f"{STEPS}scaffold"


def control_in(part: Memory) -> AdapterState:
    step = Scaffold()
    step.state = part
    return step.handed_out()


def learnt(
    memory: Memory,
    holders: set[str],
    deltas: dict[str, np.ndarray],
    bound: float | None = None,
    steps: int = 4,
) -> Memory:
    """The memory after a round in which devices sent these."""
    step, answers = opened(1, bound), list[AdmittedUpdate]()
    for name, delta in sorted(deltas.items()):
        update, norm = Update(f"w{name}", 8, {"x": delta}, steps), norm_of({"x": delta})
        counts = counted(update, norm, step, SCHEDULE)
        answers.append(AdmittedUpdate(name, update, norm, 1.0, counts))
    before = {"x": np.zeros(2, np.float32)}
    context = ServerContext(TRAINING, 1, step.population, False, {"scaffold": holders})
    return learn(Learning(), step, 9, answers, before, memory, [], False, context).memory


@given(ROUNDS, st.lists(st.sets(st.sampled_from(DEVICES), min_size=1), min_size=4, max_size=4))
def test_c_is_the_mean_of_all_devices_variates(
    rounds: list[dict[str, np.ndarray]], asked: list[set[str]]
) -> None:
    """Whoever is asked; the devices' own are what they compute themselves."""
    memory: Memory = {}
    own: dict[str, AdapterState] = {name: {} for name in DEVICES}
    for deltas, names in zip(rounds, asked, strict=False):
        sent = {name: deltas[name] for name in names}
        c = control_in(part_of(memory, CONTROL))
        holders = {name for name in DEVICES if own[name]}
        memory = learnt(memory, holders, sent)
        for name, delta in sent.items():
            change = change_of(c, {"x": delta}, 4, TRAINING.lr)["x"]
            own[name] = {"x": (own[name].get("x", 0.0) + change).astype(np.float32)}
        mean = sum((state["x"] for state in own.values() if state), np.zeros(2)) / len(DEVICES)
        now = control_in(part_of(memory, CONTROL))["x"]
        np.testing.assert_allclose(now, mean, rtol=1e-5, atol=1e-5)


def test_an_update_that_is_scaled_down_does_not_change_c() -> None:
    short, long = np.array([1, 0], np.float32), np.array([0, 50], np.float32)
    alone = learnt({}, set(), {"a": short}, bound=2.0)
    both = learnt({}, set(), {"a": short, "b": long}, bound=2.0)
    assert part_of(alone, CONTROL).keys() == part_of(both, CONTROL).keys() != set()
    assert all((both[f"{CONTROL}/{k}"] == v).all() for k, v in part_of(alone, CONTROL).items())


def test_an_update_without_steps_moves_the_adapter_and_not_c() -> None:
    memory = learnt({}, set(), {"a": np.ones(2, np.float32)}, steps=0)
    assert control_in(part_of(memory, CONTROL)) == {}


def closed(state: State, steps: dict[str, int], norms: dict[str, float]) -> State:
    """A round that is closed, in which these answered."""
    index = state.round_index + 1
    state = evolve(state, opened(index, 2.0))
    for name, count in steps.items():
        assert state.step is not None
        norm, update = norms.get(name, 1.0), Update(f"w{name}", 8, {}, count)
        counts = counted(update, norm, state.step.opened, SCHEDULE)
        answer = Answered(f"w{name}", "done", "u", 8, norm=norm, counted=counts)
        state = evolve(state, answer)
    return evolve(state, StepClosed(f"adapter-{index}", 0.0, "", "memory", SHARED))


SHARED = {"scaffold": "control"}


def test_the_journal_knows_whose_round_counted_last() -> None:
    state = closed(State("first"), {"a": 4, "b": 4, "c": 0}, {"b": 5.0})
    assert state.kept.rounds == {"scaffold": {"a": 1}} and state.shared == SHARED
    state = closed(state, {"b": 4}, {})
    assert state.kept.rounds == {"scaffold": {"a": 1, "b": 2}}


def test_a_round_that_is_not_taken_counts_for_nobody() -> None:
    state = closed(State("first"), {"a": 4}, {})
    state = evolve(state, opened(2))
    state = evolve(state, Answered("wa", "done", "u", 8, norm=1.0, counted=("scaffold",)))
    state = evolve(state, StepClosed("adapter-1", 0.0, "too long", "memory", {"scaffold": "other"}))
    assert state.kept.rounds == {"scaffold": {"a": 1}} and state.shared == SHARED


def test_a_run_that_goes_back_begins_with_none() -> None:
    state = evolve(closed(State("first"), {"a": 4}, {}), RolledBack(0, "first", "it fell", 0.0))
    assert state.kept.rounds == {} and state.shared == {}


def test_a_step_says_how_many_devices_there_are() -> None:
    state = replace(State("first"), evaluated=0)
    event = decide(SCHEDULE, state, ("a", "b", "c", "d", "e"), "secret", 0.0)
    assert isinstance(event, StepOpened) and event.population == 5
    other = decide(CONFIG, state, ("a", "b", "c", "d", "e"), "secret", 0.0)
    assert isinstance(other, StepOpened) and other.population == 0


# Admission


def sent(steps: int, num_examples: int = 9) -> bytes:
    return encode_update(Update("w", num_examples, {"x": np.ones(2, np.float32)}, steps))


@pytest.mark.parametrize("steps", [0, 6])
def test_a_number_of_steps_that_the_examples_take_is_let_in(steps: int) -> None:
    adapter = {"x": np.zeros(2, np.float32)}
    assert check_update(sent(steps), "w", adapter, SCHEDULE).steps == steps


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 7, 8, 10**9])
def test_another_number_of_steps_is_refused(steps: int) -> None:
    with pytest.raises(Refusal, match="9 examples in batches of 4 take 6 in 2 epochs"):
        check_update(sent(steps), "w", {"x": np.zeros(2, np.float32)}, SCHEDULE)


def test_texts_that_weigh_less_than_one_may_take_more_steps() -> None:
    weighted = replace(SCHEDULE, labelling=Labelling())
    adapter = {"x": np.zeros(2, np.float32)}
    assert check_update(sent(8), "w", adapter, weighted).steps == 8
    for steps in (4, 7):
        with pytest.raises(Refusal, match="take 6 or more in 2 epochs"):
            check_update(sent(steps), "w", adapter, weighted)


def test_a_round_that_draws_its_texts_takes_the_steps_of_the_draw() -> None:
    drawn = replace(SCHEDULE, training=replace(TRAINING, least_samples=20))
    adapter = {"x": np.zeros(2, np.float32)}
    assert check_update(sent(10), "w", adapter, drawn).steps == 10
    with pytest.raises(Refusal, match="9 examples in batches of 4 take 10 in 2 epochs"):
        check_update(sent(6), "w", adapter, drawn)


def test_a_variate_that_nobody_can_compute_with_does_not_count() -> None:
    update = Update("w", 9, {"x": np.ones(2, np.float32)}, 6)
    assert counted(update, 1.0, opened(), SCHEDULE) == ("scaffold",)
    assert counted(update, 4 * LARGEST, opened(), SCHEDULE) == ()
    assert counted(update, 1.0, replace(opened(), updates=()), SCHEDULE) == ()


# Settings


def test_asynchronous_rounds_have_no_control_variates() -> None:
    """A device would step by one c, and be counted by another."""
    with pytest.raises(WrongInput, match="scaffold: not in asynchronous rounds"):
        replace(SCHEDULE, asynchronous=Asynchronous())


@pytest.mark.parametrize("other", [{"optimizer": "adamw"}, {"momentum": 0.9}, {"proximal": 1.0}])
def test_control_variates_go_with_plain_sgd_alone(other: dict[str, float]) -> None:
    with pytest.raises(WrongInput, match="scaffold: optimizer sgd without momentum and proximal"):
        replace(TRAINING, **other)  # type: ignore[arg-type]
