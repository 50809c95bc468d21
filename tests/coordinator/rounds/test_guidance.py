"""What devices are told of the population, and when what they say begins to count."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.admission import FLOAT32_MAX
from smidgen.coordinator.rounds.bounds import FEWEST
from smidgen.coordinator.rounds.events import Answered, Event, Kind, Left, StepClosed, StepOpened
from smidgen.coordinator.rounds.guidance import Guidance, guidance_of, most_of_a_class
from smidgen.coordinator.rounds.machine import thresholds_before
from smidgen.coordinator.rounds.scoring import FAR_NATS, Score, bounded, class_thresholds, prior_of
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.wire.reports import BINS, STARTS, Confidences, as_bin
from smidgen.edge_client.wire.training import Labelling, keep_in
from tests.coordinator.rounds.test_label_steps import (
    FEWER,
    LABELLING,
    MEANS,
    PACED,
    TOLD,
    interleaved,
    opened,
    run,
    says,
    told_of,
)
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, answered

SURE, UNSURE = told_of((0, 0.99), (1, 0.6)), told_of((0, 0.6))
OUTCOMES = st.sampled_from(["done", "failed"])


def asked(kind: Kind, round_index: int = 1, state: State | None = None) -> State:
    """A step of this kind is open, work `w-a` for device a and so on."""
    members = tuple((f"w-{name}", name) for name in DEVICES)
    step = StepOpened(kind, round_index, 1, "first", members, 0.0)
    return evolve(state or State("first"), step)


def told(state: State, **answers: Answered) -> State:
    """The state after these devices have answered and the step is closed."""
    for name, answer in answers.items():
        state = evolve(state, replace(answer, work_id=f"w-{name}"))
    return evolve(state, StepClosed("first", 1.0))


def guided(state: State) -> Guidance:
    assert state.step is not None
    return guidance_of(PACED, state, state.step.opened)


@FEWER
@given(interleaved())
def test_who_answers_first_is_told_what_who_answers_last_is(log: list[Event]) -> None:
    state, first = State("first"), Guidance()
    for event in log:
        before, state = state, evolve(state, event)
        if isinstance(event, StepOpened):
            first = guided(state)
        elif before.step is not None and state.step is not None:
            assert guided(state) == first


@given(st.dictionaries(st.sampled_from(DEVICES), st.tuples(OUTCOMES, st.none() | TOLD)))
def test_only_labelling_that_is_done_tells_how_sure(
    said: dict[str, tuple[str, Confidences | None]],
) -> None:
    before = replace(State("first"), confidences={"a": SURE, "gone": UNSURE})
    answers = {
        name: replace(answered("", name, outcome), confidences=one)
        for name, (outcome, one) in said.items()
    }
    new = {name: one for name, (outcome, one) in said.items() if one and outcome == "done"}
    after = told(asked("label", 1, before), **answers)
    assert after.confidences == {**before.confidences, **new}
    assert told(asked("evaluate", 1, before), **answers).confidences == before.confidences
    assert told(asked("train", 1, before), **answers).confidences == before.confidences


@given(
    st.dictionaries(
        st.sampled_from(DEVICES),
        st.tuples(OUTCOMES, st.just(()) | st.tuples(MEANS, MEANS), st.integers(0, 9)),
    )
)
def test_the_prior_is_the_mean_over_all_texts_evaluated(
    said: dict[str, tuple[str, tuple[float, ...], int]],
) -> None:
    answers = {
        name: replace(
            answered("", name, outcome), num_examples=n, right=0, mean_log_probabilities=means
        )
        for name, (outcome, means, n) in said.items()
    }
    counts = [
        (means, n) for outcome, means, n in said.values() if outcome == "done" and means and n
    ]
    after = told(asked("evaluate", 2), **answers)
    if not counts:
        assert after.priors == {}
        return
    rows, weights = zip(*counts, strict=True)
    counted = [texts for _, texts in bounded([(0.0, texts) for texts in weights])]
    if len(rows) >= FEWEST:
        middle = np.median(rows, axis=0)
        rows = np.clip(rows, middle - FAR_NATS, middle + FAR_NATS)
    assert after.priors[2] == pytest.approx(np.average(rows, axis=0, weights=counted))


@pytest.mark.parametrize("mean", [-FLOAT32_MAX, FLOAT32_MAX])
def test_no_mean_that_is_let_in_makes_a_prior_that_cannot_be_sent(mean: float) -> None:
    most = replace(answered("", "a"), num_examples=2**53 - 1, right=0)
    most = replace(most, mean_log_probabilities=(mean, -mean))
    prior = told(asked("evaluate"), a=most, b=most, c=most).priors[1]
    assert prior == pytest.approx((mean, -mean))


def test_one_false_prior_is_one_voice() -> None:
    honest = replace(answered("", "a"), right=1, mean_log_probabilities=(-0.7, -0.9, -1.6))
    prior = prior_of([honest] * 19)
    assert prior == pytest.approx(honest.mean_log_probabilities)
    false = replace(honest, num_examples=10**9, mean_log_probabilities=(-3.4e38, 0.0, 3.4e38))
    assert prior_of([honest] * 19 + [false]) == pytest.approx(prior, abs=3 * FAR_NATS / 22 + 1e-9)


@given(st.lists(TOLD, min_size=3, max_size=6))
def test_a_false_count_of_sure_texts_is_worth_three_devices(told: list[Confidences]) -> None:
    labelling, usual = PACED.labelling, sorted(one.texts for one in told)
    assert labelling is not None
    counts = [[0] * BINS for _ in PACED.labels]
    counts[0][-1] = 2**52
    most = 3 * usual[len(usual) // 2]  # the lower median, with one more
    false, bounded_to = (
        class_thresholds([*told, Confidences(texts, rows)], labelling, PACED.labels, 0.5)
        for texts, rows in (
            (2**52, tuple(map(tuple, counts))),
            (most, ((*[0] * (BINS - 1), most), *map(tuple, counts[1:]))),
        )
    )
    assert false == bounded_to


def test_what_a_revoked_device_was_sure_of_is_forgotten() -> None:
    before = replace(State("first"), confidences={"a": SURE, "b": UNSURE})
    assert evolve(before, Left("a", "revoked", 1.0)).confidences == {"b": UNSURE}
    assert evolve(before, Left("a", "texts", 1.0)).confidences == before.confidences


def test_who_keeps_no_texts_for_it_does_not_move_the_prior() -> None:
    heard = replace(answered("", "a"), right=1, mean_log_probabilities=(-1.0, -3.0))
    mute = replace(heard, right=None, mean_log_probabilities=(-9.0, -9.0))
    assert told(asked("evaluate"), a=heard, b=mute).priors == {1: (-1.0, -3.0)}
    assert told(asked("evaluate"), b=mute).priors == {}


def test_a_device_that_says_no_means_bounds_nobodys_weight_in_the_prior() -> None:
    heavy = replace(answered("", "a"), num_examples=90, right=0)
    heavy = replace(heavy, mean_log_probabilities=(-1.0, -3.0))
    light = replace(heavy, num_examples=3, mean_log_probabilities=(-2.0, -2.0))
    mute = replace(heavy, num_examples=50, mean_log_probabilities=())
    both = told(asked("evaluate"), a=heavy, b=light).priors[1]
    assert told(asked("evaluate"), a=heavy, b=light, c=mute).priors[1] == both


def test_the_prior_is_that_of_the_adapter_to_label_with() -> None:
    known = State(
        "third",
        round_index=3,
        evaluated=2,
        first_sha256="first",
        evaluated_sha256="second",
        priors={0: (-1.0, -2.0), 2: (-3.0, -4.0)},
        scores={0: Score(5, 10), 2: Score(6, 10)},
    )
    assert guided(asked("label", 4, known)).prior == (-3.0, -4.0)
    worse = replace(known, scores={0: Score(5, 10), 2: Score(4, 10)})
    assert guided(asked("label", 4, worse)).prior == (-1.0, -2.0)
    ungated = replace(PACED, labelling=Labelling(is_gated=False))
    state = asked("label", 4, known)
    assert state.step is not None
    assert guidance_of(ungated, state, state.step.opened).prior == ()  # round 3: nobody knows


def test_training_is_told_how_many_and_how_sure_but_no_prior() -> None:
    known = State("first", priors={0: (-1.0, -2.0)}, confidences={"a": SURE}, labelled=1)
    guidance = guided(asked("train", 1, known))
    assert guidance == Guidance(0.1, (), thresholds_before(PACED, known, 1), most=8)
    assert guided(asked("label", 1, known)) == replace(guidance, prior=(-1.0, -2.0), most=0)


def test_without_labelling_nothing_is_told() -> None:
    state = asked("train", 1, State("first", priors={0: (-1.0, -2.0)}))
    assert state.step is not None
    assert guidance_of(CONFIG, state, state.step.opened) == Guidance()
    assert thresholds_before(CONFIG, state, 1) == ()


@given(st.dictionaries(st.sampled_from(DEVICES), TOLD), st.integers(1, 3))
def test_thresholds_are_those_of_what_was_told_and_of_k(
    said: dict[str, Confidences], round_index: int
) -> None:
    state = State("first", confidences=said)
    found = thresholds_before(PACED, state, round_index)
    share = keep_in(LABELLING, round_index, PACED.rounds)
    expected = class_thresholds(state.confidences.values(), LABELLING, PACED.labels, share)
    assert found == expected and set(found) <= set(STARTS)
    assert all(
        later <= now
        for later, now in zip(thresholds_before(PACED, state, PACED.rounds), found, strict=True)
    )


def test_before_any_word_the_confidences_hold() -> None:
    config = replace(PACED, labelling=Labelling(confidences={"b": 0.7}))
    expected = (as_bin(0.9), as_bin(0.7))
    assert [thresholds_before(config, State("first"), index) for index in (0, 1)] == [expected] * 2


@pytest.mark.parametrize(
    ("b", "c", "names"),
    [
        ((0, 0.6), (1, 0.97), ["a", "c"]),
        ((1, 0.6), (0, 0.97), ["a", "b", "c"]),  # the rarer class, whose threshold falls
    ],
)
def test_who_has_no_gold_label_is_asked_to_train_if_it_is_sure_enough(
    b: tuple[int, float], c: tuple[int, float], names: list[str]
) -> None:
    sure = {"a": told_of((0, 0.99)), "b": told_of(b), "c": told_of(c)}

    def say(step: StepOpened, work_id: str, device_id: str) -> Answered:
        answer = replace(says(step, work_id, device_id), labelled=0)
        is_label = step.kind == "label"
        return replace(answer, confidences=sure[device_id]) if is_label else answer

    _, log = run(replace(PACED, rounds=1), say)
    assert [name for _, name in opened(log, "train")[0].members] == names


def test_who_draws_its_texts_is_told_no_cap() -> None:
    state = replace(asked("train"), texts=dict.fromkeys(DEVICES, 20))
    assert state.step is not None
    assert guidance_of(PACED, state, state.step.opened).most == 20
    drawn = replace(PACED, training=replace(PACED.training, least_samples=50))
    assert guidance_of(drawn, state, state.step.opened).most == 0


def test_no_device_trains_on_far_more_of_a_class_than_others_hold() -> None:
    least = (0.9, 0.9)
    even = State("first", texts=dict.fromkeys("abc", 20))
    assert most_of_a_class(even, least) == 20
    skewed = State("first", texts={"a": 64, "b": 1, "c": 2, "d": 0})
    assert most_of_a_class(skewed, least) == 8
    assert most_of_a_class(State("first"), least) == 0
