import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.bounds import (
    EXAMPLES_FACTOR,
    GRADIENT_NORM,
    LEAST_SHARE,
    MOST_APART,
    MOST_STEPS,
    NORM_FACTOR,
    REMEMBERED,
    bounds_of,
    norm_of,
    wide_bound,
)
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    RolledBack,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.learning.registry import WeightedMean, weighted_mean
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, contributions, learn
from smidgen.coordinator.rounds.machine import bounded, decide, narrowed
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.updates.clip import Clip, UpdateBounds
from smidgen.edge_client.updates.step import ServerContext
from smidgen.edge_client.wire.tensors import AdapterState, Update
from smidgen.edge_client.wire.training import Training
from tests.coordinator.rounds.learning.test_mean import DELTAS
from tests.coordinator.rounds.test_machine import CONFIG

DEVICES = tuple("abcde")
UPDATES = st.lists(st.tuples(DELTAS, st.integers(1, 10**9)), min_size=1, max_size=6)
SOME = st.none() | st.floats(1e-3, 1e3)
BOUNDS = st.builds(UpdateBounds, SOME, st.integers(0, 10**6), SOME)


def adapter() -> AdapterState:
    return {"a": np.zeros((10, 10), np.float32)}


def played(
    config: RunConfig, norms: list[list[float]], weights: list[int] | None = None
) -> tuple[State, list[Event]]:
    """Rounds in which five devices answer, each with its norm and its weight."""
    state, log = State("first"), list[Event]()

    def take(event: Event) -> None:
        nonlocal state
        log.append(event)
        state = evolve(state, event)

    for index, told in enumerate([[], *norms]):
        for kind in ("train", "evaluate") if index else ("evaluate",):
            event = decide(config, state, DEVICES, "secret", 0.0)
            assert isinstance(event, StepOpened) and event.kind == kind
            take(bounded(event, config, state, adapter))
            for place, (work_id, _) in enumerate(event.members):
                answer = Answered(work_id, "done", "u", 6, labelled=60)
                if kind == "train":
                    weight = (weights or [6] * 5)[place]
                    answer = replace(answer, num_examples=weight, norm=told[place])
                take(answer)
            take(StepClosed(f"adapter-{index}", 0.0))
    return state, log


def openings(log: list[Event]) -> list[StepOpened]:
    return [one for one in log if isinstance(one, StepOpened) and one.kind == "train"]


def bounded_mean(updates: list[tuple[Update, float | None]], bounds: UpdateBounds) -> AdapterState:
    answers = [AdmittedUpdate(f"d{index}", *update) for index, update in enumerate(updates)]
    return WeightedMean().mean(
        Clip(bounds).incoming(contributions(answers), ServerContext(Training())),
        updates[0][0].delta,
    )


@given(UPDATES, BOUNDS)
def test_no_update_moves_the_mean_further_than_its_bounds(
    cohort: list[tuple[AdapterState, int]], bounds: UpdateBounds
) -> None:
    updates: list[tuple[Update, float | None]] = [
        (Update("w", weight, delta), norm_of(delta)) for delta, weight in cohort
    ]
    moved = norm_of(bounded_mean(updates, bounds))
    assert moved <= (math.inf if bounds.norm is None else bounds.norm * (1 + 1e-6) + 1e-6)
    for delta, claimed in cohort:
        weight, length = bounds.weight(claimed, norm_of(delta)), norm_of(delta)
        assert 0 < weight <= min(claimed, bounds.most_examples or math.inf)
        pull = weight * length * bounds.share(length)
        assert bounds.pull is None or pull <= bounds.pull * (1 + 1e-9)


@given(UPDATES)
def test_updates_inside_the_bounds_count_to_the_last_bit(
    cohort: list[tuple[AdapterState, int]],
) -> None:
    longest = max(norm_of(delta) for delta, _ in cohort)
    heaviest = max(weight for _, weight in cohort)
    bounds = UpdateBounds(longest or 1.0, heaviest, longest * heaviest)
    mean = bounded_mean([(Update("w", weight, delta), None) for delta, weight in cohort], bounds)
    plain = weighted_mean([(delta, float(weight)) for delta, weight in cohort])
    assert all(mean[name].tobytes() == plain[name].tobytes() for name in plain)


def test_an_update_that_is_huge_in_every_cell_is_as_long_as_the_bound() -> None:
    huge = Update("w", 1, {"a": np.full(30_000, 3e38, np.float32)})
    assert norm_of(bounded_mean([(huge, None)], UpdateBounds(norm=2.0))) == pytest.approx(
        2.0, rel=1e-5
    )


def test_the_first_round_is_bounded_by_how_devices_train() -> None:
    _, log = played(CONFIG, [[1.0] * 5])
    [first] = openings(log)
    steps = CONFIG.training.epochs * math.ceil(60 / CONFIG.training.batch)
    assert first.norm_bound == pytest.approx(2 * CONFIG.training.lr * 10 * steps)
    assert first.most_examples == 60 * EXAMPLES_FACTOR


def test_the_first_round_of_devices_that_draw_is_bounded_by_what_they_draw() -> None:
    training = replace(CONFIG.training, least_samples=500)
    _, log = played(replace(CONFIG, training=training), [[1.0] * 5])
    [first] = openings(log)
    steps = training.epochs * math.ceil(500 / training.batch)
    assert first.norm_bound == pytest.approx(2 * training.lr * 10 * steps)


@pytest.mark.parametrize("claims", [(5, 2**53 - 1), (2**53 - 1, 5), (0, 5, 0, 2**53 - 1)])
def test_what_a_device_claims_to_hold_widens_no_bound_of_the_first_round_far(
    claims: tuple[int, ...],
) -> None:
    told = wide_bound(CONFIG.training, claims, 100)
    assert told <= wide_bound(CONFIG.training, (MOST_APART * 5,), 100)
    assert wide_bound(CONFIG.training, (5, 2**53 - 1, 5), 100) == wide_bound(
        CONFIG.training, (5,), 100
    )


def test_of_two_honest_devices_the_smaller_one_does_not_bind_the_larger() -> None:
    assert wide_bound(CONFIG.training, (160, 4), 100) == wide_bound(CONFIG.training, (82,), 100)


def test_even_a_device_that_alone_says_what_it_holds_is_believed_so_far() -> None:
    most = 2 * CONFIG.training.lr * 10 * CONFIG.training.epochs * MOST_STEPS
    assert wide_bound(CONFIG.training, (2**53 - 1,), 100) == pytest.approx(most)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_first_round_of_sgd_is_bounded_by_what_gradients_are_known_to_be(
    momentum: float,
) -> None:
    training = replace(CONFIG.training, optimizer="sgd", lr=0.1, momentum=momentum)
    _, log = played(replace(CONFIG, training=training), [[1.0] * 5])
    [first] = openings(log)
    steps = training.epochs * math.ceil(60 / training.batch)
    assert first.norm_bound == pytest.approx(2 * 0.1 * GRADIENT_NORM / (1 - momentum) * steps)


def test_a_later_round_is_bounded_by_the_medians_of_those_before() -> None:
    _, log = played(CONFIG, [[1.0, 1.1, 1.2, 1e30, 1e30], [2.0, 2.1, 2.2, 0.0, 0.0], [1.0] * 5])
    first, second, third = openings(log)
    assert second.norm_bound == NORM_FACTOR * 1.2
    assert third.norm_bound == pytest.approx(NORM_FACTOR * (1.2 + 2.0) / 2)
    assert first.most_examples == 180 and second.most_examples == third.most_examples == 18


def test_a_claim_of_a_billion_examples_weighs_as_much_as_three_others() -> None:
    _, log = played(CONFIG, [[1.0] * 5, [1.0] * 5], [60, 60, 60, 10**9, 10**9])
    opened = openings(log)[-1]
    assert opened.most_examples == 180
    assert UpdateBounds(None, opened.most_examples).weight(10**9, 1.0) == 180.0


@pytest.mark.parametrize(("norm", "claimed"), [(3.0, 60), (1.0, 180), (2.0, 90), (1e30, 10**9)])
def test_no_device_pulls_harder_than_three_median_ones(norm: float, claimed: int) -> None:
    _, log = played(CONFIG, [[1.0] * 5, [1.0] * 5], [60] * 5)
    bounds = bounds_of(openings(log)[-1])
    assert bounds.pull == 180.0
    assert bounds.weight(claimed, norm) * norm * bounds.share(norm) == pytest.approx(180.0)


def test_what_a_run_file_sets_is_the_owners_and_has_no_pull() -> None:
    for own in ({"norm_bound": 0.5}, {"max_examples": 7}, {"norm_bound": 0}, {"max_examples": 0}):
        log = played(replace(CONFIG, **own), [[1.0] * 5] * 2)[1]
        assert [one.most_pull for one in openings(log)] == [None, None]


def test_a_run_file_says_its_own_bounds_or_none() -> None:
    config = replace(CONFIG, norm_bound=0.5, max_examples=7)
    [own] = openings(played(config, [[1.0] * 5])[1])
    assert (own.norm_bound, own.most_examples) == (0.5, 7)
    off = replace(CONFIG, norm_bound=0)
    assert [one.norm_bound for one in openings(played(off, [[9.0] * 5] * 2)[1])] == [None, None]


@pytest.mark.parametrize("short", [0.0, 1e-30])
@pytest.mark.parametrize("cohort", [1, 5])
def test_updates_that_are_empty_do_not_stop_those_that_are_not(short: float, cohort: int) -> None:
    hostile = [short] * 3 + [1.0] * 2  # of a small cohort, or the majority of one round's answers
    config = replace(CONFIG, max_cohort=cohort, rounds=5)
    _, log = played(config, [hostile[:cohort], *[[0.1] * cohort] * 4])
    first, *later = (one.norm_bound or 0.0 for one in openings(log))
    assert min(later) >= LEAST_SHARE * first > 0.0
    assert later[-1] >= 0.1 and (cohort > 1 or later[0] == first)


@given(st.data())
def test_bounds_are_replayed_and_do_not_hang_on_the_order_of_answers(data: st.DataObject) -> None:
    norms = data.draw(st.lists(st.lists(st.floats(0, 1e38), min_size=5, max_size=5), max_size=3))
    state, log = played(CONFIG, norms)
    again = [decode_event(encode_event(event)) for event in log]
    assert replay("first", again) == state
    groups, mixed = list[Event](), list[Event]()
    for event in log:
        if isinstance(event, Answered):
            groups.append(event)
            continue
        mixed += data.draw(st.permutations(groups))
        groups = []
        mixed.append(event)
    assert replay("first", mixed).medians == state.medians


def test_what_is_known_of_norms_does_not_grow_with_the_rounds() -> None:
    state, _ = played(replace(CONFIG, rounds=30), [[1.0] * 5] * 20)
    assert len(state.medians.norms) == len(state.medians.examples) == REMEMBERED


def test_medians_that_were_known_before_survive_a_roll_back() -> None:
    state, _ = played(replace(CONFIG, rounds=9), [[1.0] * 5, *[[2.0] * 5] * 3])
    for back_to, left in ((2, (1.0, 2.0)), (0, (1.0,))):
        back = evolve(state, RolledBack(back_to, f"adapter-{back_to}", "", 0.0))
        assert back.medians.norms == left and len(back.medians.examples) == len(left)
        opened = decide(replace(CONFIG, rounds=9), back, DEVICES, "secret", 0.0)
        assert isinstance(opened, StepOpened) and opened.kind == "train"
        bound = bounded(opened, replace(CONFIG, rounds=9), back, adapter)
        assert bound.norm_bound == pytest.approx(NORM_FACTOR * np.median(left))


FLEET = tuple("abcdefghij")
FIRST: AdapterState = {"a": np.zeros((10, 10), np.float32)}


def honest(device_id: str, round_index: int) -> AdapterState:
    """An update as long as others': 0.4 of what the learning rate allows, half of it one way."""
    draw = np.random.Generator(np.random.PCG64(ord(device_id) * 1000 + round_index))
    own = draw.normal(0, 1, (10, 10)) / 10 + 0.1
    reach = CONFIG.training.lr * 10 * CONFIG.training.epochs * math.ceil(60 / CONFIG.training.batch)
    return {"a": (0.4 * reach / math.sqrt(2) * own).astype(np.float32)}


def moved_by_one(cohort: int, texts: int | None, back_after: int = 0) -> list[float]:
    """How much further than honest updates' mean each round goes, in honest updates' lengths.

    The last device sends 3e38 in every cell, of 10^9 texts, whenever it is asked.

    Args:
        cohort: How many are asked in a round.
        texts: What each honest device says it holds.
        back_after: The round after which the run goes back to its first adapter.
    """
    config = replace(CONFIG, rounds=12, max_cohort=cohort, min_clients=2)
    state, moved = State("first"), list[float]()
    while not state.is_finished:
        event = decide(config, state, FLEET, "secret", 0.0)
        assert event is not None
        if isinstance(event, StepOpened):
            event = bounded(event, config, state, lambda: FIRST)
            sent = dict[str, tuple[str, Update]]()
            state = evolve(state, event)
            for work_id, name in event.members:
                told = (10**9 if name == FLEET[-1] else texts) if texts else None
                answer = Answered(work_id, "done", None, 10, labelled=told, right=5)
                if event.kind == "train":
                    delta = honest(name, event.round_index)
                    update = Update(work_id, 60, delta)
                    if name == FLEET[-1]:
                        update = Update(work_id, 10**9, {"a": np.full((10, 10), 3e38, np.float32)})
                    sent[name] = work_id, update
                    norm = norm_of(update.delta)
                    answer = Answered(work_id, "done", name, update.num_examples, norm=norm)
                state = evolve(state, answer)
            continue
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            assert state.step is not None
            opened = narrowed(config, state, state.step)
            cohort_of = [AdmittedUpdate(name, one) for name, (_, one) in sorted(sent.items())]
            norms = state.medians.norms
            gave = learn(config.learning, opened, 12, cohort_of, FIRST, {}, norms)
            others = [one.update.delta["a"] for one in cohort_of if one.device_id != FLEET[-1]]
            plain = np.mean(others, axis=0) if others else 0.0
            usual = norm_of(honest("a", 1))
            assert not gave.lack
            moved.append(float(np.linalg.norm(gave.adapter["a"] - plain)) / usual)
            event = replace(event, adapter_sha256=f"adapter-{opened.round_index}")
            state = evolve(state, event)
            if opened.round_index == back_after:
                state = evolve(state, RolledBack(0, "first", "", 0.0))
            continue
        state = evolve(state, event)
    return moved


@pytest.mark.parametrize("texts", [60, None])
@pytest.mark.parametrize(("cohort", "first", "later"), [(10, 0.3, 0.3), (2, 1.5, 1.5), (1, 12, 4)])
@pytest.mark.parametrize("back_after", [0, 1, 8])
def test_one_device_of_ten_moves_the_adapter_by_a_few_honest_updates_in_any_round(
    cohort: int, first: float, later: float, texts: int | None, back_after: int
) -> None:
    moved = moved_by_one(cohort, texts, back_after)
    print(
        f"cohorts of {cohort}, texts {'told' if texts else 'untold'}, back after {back_after}: one "
        f"device of 10 moves round 1 by {moved[0]:.2f} honest updates, a later one by "
        f"{max(moved[1:]):.2f} at most"
    )
    assert max(moved[:3]) <= first and max(moved[3:]) <= later
