"""Ridge regression out of moments: what one place would compute, whoever holds which text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.events import (
    Answered,
    Extended,
    Finished,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate, learn
from smidgen.coordinator.rounds.machine import bounded, decide
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.selection import Facts
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.peft_folder import Exported, read_peft_folder, write_peft_folder
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import OF_MOMENTS, OF_PRIOR
from smidgen.edge_client.updates.privacy import Privacy
from smidgen.edge_client.updates.ridge import (
    FEW,
    MOMENTS,
    NATS,
    PENALTY,
    PRIOR,
    SLACK,
    WEIGHT,
    calibrated,
    features,
    moments_of,
    prior_of,
    solved,
)
from smidgen.edge_client.updates.secure_sum import levels_of, widest_for
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.reports import counted
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    encode_adapter,
    encode_update,
)
from smidgen.edge_client.wire.training import Labelling, Training
from tests.edge_client.engine.engines import KINDS, TEXTS, batch_of, engine_of

WIDTH, LABELS = 6, 3
SHAPE = (LABELS, WIDTH + 1)
ADAPTER = {
    WEIGHT: np.zeros(SHAPE, np.float32),
    "q.lora_A.weight": np.ones((2, 5), np.float32),
    "q.lora_B.weight": np.zeros((5, 2), np.float32),
}
STEP = StepOpened("train", 1, 1, "sha", (), 0.0, updates=(OF_MOMENTS,))
DEALS = st.lists(st.integers(0, 4), min_size=1, max_size=12)  # whose each text is


def drawn(texts: int, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(seed)
    states = generator.normal(size=(texts, WIDTH)).astype(np.float32)
    return states, generator.integers(0, LABELS, texts).tolist()


def least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """W with the penalty as rows of its own, not by the normal equations."""
    x = np.vstack([rows, np.sqrt(PENALTY) * np.eye(rows.shape[1])])
    found, *_ = np.linalg.lstsq(x, np.vstack([wanted, np.zeros((rows.shape[1], LABELS))]))
    weight: np.ndarray = NATS * found.T
    return weight


def in_one_place(states: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Of each text how far it is from its label's mean, and these as often as one another."""
    x, y = features(states), np.eye(LABELS)[list(labels)]
    there = sorted({*labels})
    means = np.array([x[y[:, label] == 1].mean(axis=0) for label in there])
    often = np.sqrt(len(x) / len(there))
    rows = np.vstack([x - means[[there.index(label) for label in labels]], often * means])
    return least_squares(rows, np.vstack([np.zeros_like(y), often * np.eye(LABELS)[there]]))


def learnt(
    updates: Sequence[Update],
    opened: StepOpened = STEP,
    learning: Learning | None = None,
    weight: float = 0.0,
) -> AdapterState:
    answers = [AdmittedUpdate(f"d{n}", update, None) for n, update in enumerate(updates)]
    adapter = ADAPTER | {WEIGHT: np.full(SHAPE, weight, np.float32)}
    found = learn(learning or Learning(), opened, 9, answers, adapter, {}, [])
    assert not found.lack
    return found.adapter


def update_of(states: np.ndarray, labels: Sequence[int]) -> Update:
    return Update("w", len(labels), {MOMENTS: moments_of(states, labels, LABELS)})


@pytest.mark.parametrize(
    "learning", [Learning(), Learning(optimizer="fedavgm"), Learning(optimizer="fedadam")]
)
@given(DEALS, st.integers(0, 99))
def test_dealing_changes_nothing(learning: Learning, owners: list[int], seed: int) -> None:
    """Single texts, single classes, devices without a class: as if all lay in one place."""
    states, labels = drawn(len(owners), seed)
    parts = [np.flatnonzero(np.array(owners) == owner) for owner in sorted({*owners})]
    updates = [update_of(states[rows], [labels[row] for row in rows]) for rows in parts]
    after = learnt(updates, learning=learning)
    np.testing.assert_allclose(after[WEIGHT], in_one_place(states, labels), atol=2e-4)
    others = {name: one for name, one in after.items() if name != WEIGHT}
    before = {name: one for name, one in ADAPTER.items() if name != WEIGHT}
    assert encode_adapter(others) == encode_adapter(before)


def test_of_labels_with_as_many_texts_it_is_plain_ridge_regression() -> None:
    states, _ = drawn(12)
    labels = [0, 1, 2] * 4
    plain = least_squares(features(states), np.eye(LABELS)[labels])
    after = learnt([update_of(states, labels)])[WEIGHT]
    np.testing.assert_allclose(after, plain, atol=2e-4)


def test_later_rounds_leave_it_as_it_is() -> None:
    weight = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    delta = {name: one + 1 for name, one in ADAPTER.items() if name != WEIGHT}
    answers = [AdmittedUpdate("d", Update("w", 3, delta), None)]
    second, adapter = replace(STEP, updates=("ridge",)), ADAPTER | {WEIGHT: weight}
    for optimizer in ("fedavg", "fedadam", "fedavgm"):
        found = learn(Learning(optimizer=optimizer), second, 9, answers, adapter, {}, [])
        assert np.array_equal(found.adapter[WEIGHT], weight)
        assert not np.array_equal(found.adapter["q.lora_B.weight"], adapter["q.lora_B.weight"])


def test_one_device_weighs_no_more_than_the_runs_bound() -> None:
    (few, few_labels), (many, many_labels) = drawn(4), drawn(400, 1)
    updates = [update_of(few, few_labels), update_of(many, many_labels)]
    after = learnt(updates, replace(STEP, most_examples=12))
    first, second = (update.delta[MOMENTS] for update in updates)
    mean: np.ndarray = (4 * first + 12 * second) / np.float32(16)
    np.testing.assert_allclose(after[WEIGHT], solved(mean, 16, SHAPE), atol=1e-4)


@pytest.mark.parametrize("labels", [[0], [1, 1, 1], [0, 1, 2]])
def test_one_text_one_class_and_equal_states_have_a_solution(labels: list[int]) -> None:
    states = np.ones((len(labels), WIDTH), np.float32)
    after = learnt([update_of(states, labels)])[WEIGHT]
    assert np.isfinite(after).all()
    scores = features(states[:1]) @ after.T
    assert scores.argmax() == np.bincount(labels).argmax()


def whole_of(moments: np.ndarray) -> np.ndarray:
    size = sum(SHAPE)
    whole = np.zeros((size, size))
    whole[np.triu_indices(size)] = moments
    return whole + np.triu(whole, 1).T


def sent(whole: np.ndarray) -> bytes:
    moments = whole[np.triu_indices(len(whole))].astype(np.float32)
    return encode_update(Update("w", 3, {MOMENTS: moments}))


WORDS = {"a": "good", "b": "bad", "c": "news"}
ABC = Task("t", tuple(WORDS), ("{text} [MASK]",), WORDS)
SCHEDULE = RunConfig("r", ABC, adapter="lora:8+ridge")


def test_what_texts_have_is_let_in() -> None:
    for texts in (1, 2, 40):
        body = sent(whole_of(update_of(*drawn(texts)).delta[MOMENTS]))
        assert check_update(body, "w", ADAPTER, SCHEDULE, 1, [OF_MOMENTS]).num_examples == 3


def without_states(whole: np.ndarray) -> np.ndarray:
    """Labels' part alone: what pulls W as far as it likes, as nothing holds it."""
    lies = whole.copy()
    lies[:WIDTH, :WIDTH] = 0
    return lies


def turned(whole: np.ndarray) -> np.ndarray:
    lies = whole.copy()
    lies[:WIDTH, WIDTH + 1 :] *= -1000
    lies[WIDTH + 1 :, :WIDTH] *= -1000
    return lies


def twice(whole: np.ndarray) -> np.ndarray:
    return 2 * whole


def several_labels(whole: np.ndarray) -> np.ndarray:
    lies = whole.copy()
    lies[-1, -2] = lies[-2, -1] = 0.3
    return lies


def negative(whole: np.ndarray) -> np.ndarray:
    lies = whole.copy()
    lies[0, 0], lies[1, 1] = -0.5, lies[1, 1] + lies[0, 0] + 0.5
    return lies


def a_little_less(whole: np.ndarray) -> np.ndarray:
    """What takes the penalty away, where many texts multiply it."""
    return whole - 1e-4 * np.eye(len(whole))


LIES = [without_states, turned, twice, several_labels, negative, a_little_less]


@pytest.mark.parametrize("lie", LIES)
def test_what_no_texts_have_is_refused(lie: Callable[[np.ndarray], np.ndarray]) -> None:
    whole = whole_of(update_of(*drawn(40)).delta[MOMENTS])
    with pytest.raises(Refusal, match="ridge: moments of texts of length 1"):
        check_update(sent(lie(whole)), "w", ADAPTER, SCHEDULE, 1, [OF_MOMENTS])


def test_a_lie_within_rounding_leaves_the_penalty() -> None:
    """Of 10^9 texts too: without it an eigenvalue could be as small as a liar likes."""
    whole = whole_of(update_of(*drawn(4)).delta[MOMENTS]) - SLACK / 2 * np.eye(sum(SHAPE))
    moments = whole[np.triu_indices(len(whole))].astype(np.float32)
    body = encode_update(Update("w", 10**9, {MOMENTS: moments}))
    update = check_update(body, "w", ADAPTER, SCHEDULE, 1, [OF_MOMENTS])
    x, y = features(np.eye(WIDTH, dtype=np.float32)), learnt([update])[WEIGHT]
    assert np.abs(x @ y.T).max() < 10 * NATS


@pytest.mark.parametrize("steps", [[OF_MOMENTS], ["ridge"]])
def test_each_round_takes_its_own_tensors(steps: list[str]) -> None:
    moments = sent(whole_of(update_of(*drawn(4)).delta[MOMENTS]))
    lora = {name: np.zeros_like(one) for name, one in ADAPTER.items() if name != WEIGHT}
    bodies = [moments, encode_update(Update("w", 3, lora))]
    own = bodies.pop(0 if steps == [OF_MOMENTS] else 1)
    check_update(own, "w", ADAPTER, SCHEDULE, 1, steps)
    for other in (*bodies, encode_update(Update("w", 3, ADAPTER))):
        with pytest.raises(Refusal, match="tensor"):
            check_update(other, "w", ADAPTER, SCHEDULE, 1, steps)


ALIVE = tuple(f"d{n:02}" for n in range(20))


def asked_in(config: RunConfig, state: State) -> StepOpened:
    """The training step that is due."""
    opened = decide(config, state, ALIVE, "secret", 5.0, Facts())
    assert isinstance(opened, StepOpened) and opened.kind == "train", opened
    return bounded(opened, config, state, lambda: ADAPTER)


def closed(state: State, opened: StepOpened, refused: str = "") -> State:
    state = evolve(state, opened)
    for work_id, _ in opened.members:
        state = evolve(state, Answered(work_id, "done", "u", 3, norm=1.4))
    return evolve(state, StepClosed("sha" if refused else "next", 6.0, refused))


def test_the_first_round_asks_everybody_once_and_moves_no_bound() -> None:
    config = replace(SCHEDULE, fraction=0.2, max_cohort=2, over_selection=2.0, evaluate_every=0)
    state = State("sha", evaluated=0, texts=dict.fromkeys(ALIVE, 3))
    opened = asked_in(config, state)
    assert opened.updates == (OF_MOMENTS,) and opened.most_examples == 9
    assert [name for _, name in opened.members] == sorted(ALIVE)
    state = closed(state, opened)
    assert (state.round_index, state.solved) == (1, 1) and not state.medians.norms
    second = asked_in(config, state)
    assert second.updates == ("ridge",) and len(second.members) == 4


def test_moments_are_asked_for_again_where_their_round_gave_nothing() -> None:
    config = replace(SCHEDULE, evaluate_every=0)
    state = State("sha", evaluated=0, texts=dict.fromkeys(ALIVE, 3))
    state = closed(state, asked_in(config, state), refused="no sum")
    assert (state.round_index, state.solved) == (1, 0)
    again = asked_in(config, state)
    assert again.updates == (OF_MOMENTS,) and again.round_index == 2
    state = closed(state, again)
    assert state.solved == 2 and asked_in(config, state).updates == ("ridge",)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_after_a_roll_back_an_operator_gets_moments_again(is_ordered: bool) -> None:
    """A run that went back by itself found that they did harm, and goes on without."""
    config = replace(SCHEDULE, evaluate_every=0)
    state = State("sha", evaluated=0, texts=dict.fromkeys(ALIVE, 3), first_sha256="sha")
    state = closed(state, asked_in(config, state))
    back = evolve(state, RolledBack(0, "sha", "", 7.0, is_ordered=is_ordered))
    assert asked_in(config, back).updates == ((OF_MOMENTS,) if is_ordered else ("ridge",))


def answers(owners: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """W x and log-probabilities of some texts, and which of them each device holds."""
    generator = np.random.default_rng(seed)
    scores, logs = generator.normal(size=(2, len(owners), LABELS)) * 5.0
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    parts = [np.flatnonzero(np.array(owners) == owner) for owner in sorted({*owners})]
    return scores, logs, parts


LAST = StepOpened("train", 3, 1, "sha", (), 0.0, updates=(OF_PRIOR,))


@given(DEALS, st.integers(0, 99))
def test_dealing_changes_no_calibration(owners: list[int], seed: int) -> None:
    scores, logs, parts = answers(owners, seed)
    updates = [
        Update("w", len(rows), {PRIOR: prior_of(scores[rows], logs[rows])}) for rows in parts
    ]
    after = learnt(updates, LAST, weight=1.0)
    whole = calibrated(np.ones(SHAPE, np.float32), prior_of(scores, logs), len(owners))
    np.testing.assert_allclose(after[WEIGHT], whole, atol=1e-4)
    assert (after[WEIGHT][:, :-1] == 1.0).all()
    for name in ADAPTER.keys() - {WEIGHT}:
        np.testing.assert_array_equal(after[name], ADAPTER[name])


@pytest.mark.parametrize("often", [(5, 5, 5), (50, 5, 1), (0, 7, 3)])
def test_a_bias_comes_off_however_frequent_labels_are(often: tuple[int, ...]) -> None:
    """Answers of +2 nats for the right label, plus a bias: the bias is what is found."""
    labels, bias = np.repeat(np.arange(LABELS), often), np.array([1.5, -0.5, -1.0])
    right = np.eye(LABELS)[labels]
    known = 2.0 * right + bias - 5.0
    weight = calibrated(ADAPTER[WEIGHT], prior_of(40.0 * right, known), len(labels))
    there = np.array(often) > 0
    off = bias + weight[:, -1] - 2.0 / there.sum() * ~there
    np.testing.assert_allclose(off - off.mean(), 0.0, atol=1e-5)


def test_labels_that_no_text_seems_to_have_leave_it_as_it_is() -> None:
    flat = prior_of(np.zeros((1, LABELS)), np.zeros((1, LABELS)))
    weight = calibrated(ADAPTER[WEIGHT], flat, 1)
    np.testing.assert_array_equal(weight, ADAPTER[WEIGHT])


def test_a_sum_under_masks_is_calibrated_by_as_many_texts_as_it_is_of() -> None:
    scores, logs, _ = answers([0] * 40, 0)
    told = Update("", 40, {PRIOR: prior_of(scores, logs)})
    adapter = ADAPTER | {WEIGHT: np.ones(SHAPE, np.float32)}
    found = learn(Learning(), LAST, 9, [AdmittedUpdate("", told)], adapter, {}, [])
    wanted = calibrated(adapter[WEIGHT], told.delta[PRIOR], 40)
    np.testing.assert_allclose(found.adapter[WEIGHT], wanted, atol=1e-5)


def test_an_answer_of_one_text_counts_for_no_more_than_sixteen_nats() -> None:
    told = prior_of(np.zeros((1, LABELS)), np.array([[-np.inf, -1e9, 0.0]]))
    np.testing.assert_allclose(told, np.array([[-1.0, -1.0, 0.0, 1.0]] * LABELS) / LABELS)


@pytest.mark.parametrize("lie", [[-1.0, 1.0, 1.0], [3.0, 3.0, 3.0], [0.5, 0.5, 0.5]])
def test_a_prior_that_no_texts_have_is_refused(lie: list[float]) -> None:
    scores, logs, _ = answers([0] * 9, 0)
    told = prior_of(scores, logs)
    shares = told.copy()
    shares[:, -1] = lie
    for prior in (shares, -told, 2 * told):
        body = encode_update(Update("w", 9, {PRIOR: prior}))
        with pytest.raises(Refusal, match="ridge: log-probabilities, and shares"):
            check_update(body, "w", ADAPTER, SCHEDULE, 3, [OF_PRIOR])
    body = encode_update(Update("w", 9, {PRIOR: told}))
    assert check_update(body, "w", ADAPTER, SCHEDULE, 3, [OF_PRIOR]).num_examples == 9


def test_nobody_s_prior_weighs_more_than_that_of_few_texts() -> None:
    scores, logs, parts = answers([0, 1] * FEW, 0)
    told = [prior_of(scores[rows], logs[rows]) for rows in parts]
    honest = [Update("w", FEW, {PRIOR: one}) for one in told]
    after = [
        learnt([first, honest[1]], LAST, weight=1.0)
        for first in (honest[0], replace(honest[0], num_examples=10**6))
    ]
    np.testing.assert_array_equal(after[0][WEIGHT], after[1][WEIGHT])


def test_the_last_round_asks_everybody_for_the_prior() -> None:
    config = replace(SCHEDULE, rounds=4, fraction=0.2, evaluate_every=0)
    state, asked = State("sha", evaluated=0, texts=dict.fromkeys(ALIVE, 3)), []
    for _ in range(4):
        opened = asked_in(config, state)
        asked.append((*opened.updates, len(opened.members)))
        state = closed(state, opened)
    assert asked == [(OF_MOMENTS, 20), ("ridge", 4), ("ridge", 4), (OF_PRIOR, 20)]
    more = replace(state, rounds=6, evaluated=4)  # an operator adds two rounds
    assert asked_in(config, more).updates == (OF_MOMENTS,)
    back = evolve(more, RolledBack(2, "next", "", 7.0, is_ordered=True))  # to before its prior
    again = replace(back, evaluated=4)
    assert again.solved == 1 and asked_in(config, again).updates == ("ridge",)
    one_more = replace(state, rounds=5, evaluated=4)  # after which nothing would calibrate
    assert asked_in(config, one_more).updates == ("ridge",)


@pytest.mark.parametrize("rounds", [3, 9])
def test_a_run_without_progress_calibrates_once_before_it_ends(rounds: int) -> None:
    """Nothing becomes better, nor does it by calibrating, which `patience` does not count."""
    config = replace(SCHEDULE, rounds=rounds, patience=2)
    state, asked, rights = State("sha", evaluated=0, texts=dict.fromkeys(ALIVE, 3)), list[str](), 2
    while (opened := decide(config, state, ALIVE, "secret", 5.0, Facts())) and not isinstance(
        opened, Finished
    ):
        assert isinstance(opened, StepOpened)
        asked += [opened.updates[0]] if opened.updates else ["evaluate"]
        state = evolve(state, opened)
        rights = 3 if asked[-1] == OF_PRIOR else rights  # calibrated it is better after all
        for work_id, _ in opened.members:
            state = evolve(state, Answered(work_id, "done", "u", 3, norm=1.4, right=rights))
        state = evolve(state, StepClosed("next" if opened.updates else "sha", 6.0))
    first = [OF_MOMENTS, "evaluate", "ridge", "evaluate"]
    longer = ["ridge", "evaluate"] if rounds == 9 else []
    assert asked == [*first, *longer, OF_PRIOR, "evaluate"]
    assert isinstance(opened, Finished) and bool(opened.reason) == (rounds == 9)
    more = evolve(evolve(state, opened), Extended(rounds + 4, 9.0))
    assert asked_in(config, more).updates == (OF_MOMENTS,)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_no_bias_comes_off_twice_after_a_roll_back(is_ordered: bool) -> None:
    """Calibrated in round 4, two rounds added, moments in 5, and back to 4."""
    config = replace(SCHEDULE, rounds=4, evaluate_every=0)
    known: Any = {"evaluated": 5, "texts": dict.fromkeys(ALIVE, 3), "rounds": 7}
    state = State("sha", round_index=5, solved=5, calibrated=4, **known)
    back = evolve(state, RolledBack(4, "sha", "", 7.0, is_ordered=is_ordered))
    last = replace(back, round_index=6, evaluated=6)
    assert asked_in(config, back).updates == (OF_MOMENTS,)
    assert asked_in(config, last).updates == ("ridge",)  # after moments nothing would calibrate


def test_without_a_solution_nothing_is_calibrated() -> None:
    scores, logs, _ = answers([0] * 9, 0)
    after = learnt([Update("w", 9, {PRIOR: prior_of(scores, logs)})], LAST)
    assert encode_adapter(after) == encode_adapter(ADAPTER)


def test_where_nobody_holds_labels_of_its_own_the_last_round_trains() -> None:
    config = replace(SCHEDULE, rounds=2, labelling=Labelling(), evaluate_every=0)
    sure = counted(5, [0, 1, 2], [0.99] * 3, 3)
    known: Any = {"evaluated": 1, "labelled": 2, "confidences": dict.fromkeys(ALIVE, sure)}
    state = State("sha", round_index=1, solved=1, texts=dict.fromkeys(ALIVE, 0), **known)
    assert asked_in(config, state).updates == ("ridge",)


def test_who_holds_no_label_of_its_own_is_not_asked_for_moments() -> None:
    config = replace(SCHEDULE, labelling=Labelling(), evaluate_every=0)
    sure = counted(5, [0, 1, 2], [0.99] * 3, 3)
    known: Any = {"evaluated": 0, "labelled": 1, "confidences": dict.fromkeys(ALIVE, sure)}
    state = State("sha", texts=dict.fromkeys(ALIVE, 0) | {"d03": 2}, **known)
    opened = asked_in(config, state)
    assert [name for _, name in opened.members] == ["d03"] and opened.updates == (OF_MOMENTS,)
    for least, texts in ((1, {}), (2, {"d03": 2})):
        asking = replace(config, min_updates=least)
        few = asked_in(asking, State("sha", texts=dict.fromkeys(ALIVE, 0) | texts, **known))
        assert len(few.members) == len(ALIVE) and few.updates == ("ridge",)


def summed(parts: Sequence[tuple[np.ndarray, list[int]]], lie: float = 0.0) -> np.ndarray:
    """The mean of devices' moments as secure aggregation gives it: rounded by each of them."""
    devices, most = len(parts), max(len(labels) for _, labels in parts)
    levels = levels_of(widest_for(devices))
    total, weight = np.zeros(0), 0.0
    for number, (states, labels) in enumerate(parts):
        exact = moments_of(states, labels, LABELS).astype(np.float64)
        if lie and not number:
            exact[np.flatnonzero(np.eye(sum(SHAPE))[np.triu_indices(sum(SHAPE))])] -= lie
        share = len(labels) / most
        rounded = np.rint(exact * share * levels)
        total = total + rounded if total.size else rounded
        weight += share
    mean: np.ndarray = total / (levels * weight)
    return mean


@pytest.mark.parametrize("texts", [3, 3000])
def test_a_sum_under_masks_is_as_good(texts: int) -> None:
    parts = [drawn(texts, seed) for seed in range(12)]
    whole = np.concatenate([states for states, _ in parts])
    labels = [label for _, some in parts for label in some]
    mean = summed(parts).astype(np.float32)
    answers = [AdmittedUpdate("", Update("", 12 * texts, {MOMENTS: mean}))]
    found = learn(Learning(), STEP, 9, answers, ADAPTER, {}, [])
    np.testing.assert_allclose(found.adapter[WEIGHT], in_one_place(whole, labels), atol=2e-3)


def test_a_sum_that_no_texts_have_gives_no_solution() -> None:
    mean = summed([drawn(20, seed) for seed in range(3)], lie=0.9).astype(np.float32)
    answers = [AdmittedUpdate("", Update("", 60, {MOMENTS: mean}))]
    found = learn(Learning(), STEP, 9, answers, ADAPTER, {}, [])
    assert found.lack.startswith("ridge: moments of texts") and not found.adapter[WEIGHT].any()


@pytest.mark.parametrize("devices", [3, 50, 200, 1024])
def test_a_sum_of_moments_travels_in_32_bits(devices: int) -> None:
    bits = widest_for(devices)
    assert 21 <= bits <= 25 and devices * levels_of(bits) < 2**31


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"privacy": Privacy(epsilon=8.0, delta=1e-3, clip=0.1)}, "privacy"),
        ({"training": Training(optimizer="sgd", scaffold=True)}, "scaffold"),
        ({"updates": Updates(steps=("sign",))}, "steps = sign"),
        ({"learning": Learning(lora_mean="product")}, "lora_mean = product"),
        ({"learning": Learning(mean="trimmed:0.2")}, "mean = trimmed:0.2"),
        ({"asynchronous": Asynchronous()}, "asynchronous"),
    ],
)
def test_what_it_does_not_go_with_is_named(said: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        replace(SCHEDULE, min_clients=9, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["prompt:4+ridge", "bias+ridge", "head+ridge", "lora:4+ffa+ridge"])
def test_an_adapter_that_it_is_not_for_is_refused(name: str) -> None:
    with pytest.raises(AdapterError):
        parse_adapter(name)


TWO_PATTERNS = replace(ABC, patterns=("{text} [MASK]", "[MASK] {text}"), ensemble=True)


@pytest.mark.parametrize("task", [TWO_PATTERNS, replace(ABC, kind="multilabel")])
def test_a_task_that_it_is_not_for_is_refused(tiny_base: Base, task: Task) -> None:
    with pytest.raises(AdapterError, match="one label per text"):
        engine_of(KINDS[0], tiny_base, task, "lora:2+head+ridge")


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_adds_both_readings(tiny_base: Base, hub_task: Task, kind: str) -> None:
    plain = engine_of(kind, tiny_base, hub_task, "lora:2")
    both = engine_of(kind, tiny_base, hub_task, "lora:2+ridge")
    states = plain.features(TEXTS, plain.layers)  # of the base: LoRA is at its start
    batch = batch_of(both)
    for engine in (plain, both):
        for _ in range(3):
            engine.train_step(batch)
    np.testing.assert_array_equal(both.predict(TEXTS), plain.predict(TEXTS))
    moments = both.second_moments(TEXTS)
    gold = both.encoder.labels(TEXTS)
    np.testing.assert_allclose(moments, moments_of(states, gold, len(hub_task.labels)), atol=1e-6)
    adapter = both.adapter()
    weight = solved(moments, len(TEXTS), adapter[WEIGHT].shape)
    both.load_adapter(adapter | {WEIGHT: weight})
    wanted = plain.predict(TEXTS) + features(states) @ weight.T.astype(np.float64)
    wanted -= np.log(np.exp(wanted).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(both.predict(TEXTS), wanted, atol=2e-5)
    trained = {name: one for name, one in both.adapter().items() if name != WEIGHT}
    assert encode_adapter(trained) == encode_adapter(plain.adapter())


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_tells_both_readings_apart(tiny_base: Base, hub_task: Task, kind: str) -> None:
    both = engine_of(kind, tiny_base, hub_task, "lora:2+ridge")
    for _ in range(3):
        both.train_step(batch_of(both))
    logs, adapter = both.predict(TEXTS), both.adapter()
    weight = solved(both.second_moments(TEXTS), len(TEXTS), adapter[WEIGHT].shape)
    both.load_adapter(adapter | {WEIGHT: weight})
    scores = features(both.features(TEXTS, both.layers)) @ weight.T
    before = both.predict(TEXTS)
    np.testing.assert_allclose(both.prior(TEXTS), prior_of(scores, logs), atol=1e-6)
    np.testing.assert_array_equal(both.predict(TEXTS), before)


def test_it_goes_home_and_comes_back(tiny_base: Base, hub_task: Task, tmp_path: Path) -> None:
    name = "lora:2+ridge"
    spec, rows = parse_adapter(name), len(hub_task.labels)
    state = initial_adapter(spec, tiny_base, rows, 1)
    state[WEIGHT] += np.float32(0.5)
    about = tiny_base.peft_name, tiny_base.base_id, tiny_base.architecture, hub_task
    write_peft_folder(tmp_path, Exported(name, *about), encode_adapter(state), base=tiny_base)
    peft = decode_adapter((tmp_path / "adapter_model.safetensors").read_bytes())
    assert WEIGHT not in peft and len(peft) == len(state) - 1
    assert not (tmp_path / "adapter.gguf").exists()
    assert encode_adapter(read_peft_folder(tmp_path, tiny_base)[1]) == encode_adapter(state)
    (tmp_path / "ridge.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"ridge\.safetensors"):
        read_peft_folder(tmp_path, tiny_base)
