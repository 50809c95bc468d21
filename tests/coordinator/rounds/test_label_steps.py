"""The state machine with labelling: when it is due, who is asked, and with which adapter."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import decide, labels_with, thresholds_before
from smidgen.coordinator.rounds.scheduling.participation import Patience
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.wire.reports import Confidences, counted
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, answered, proceed

LABELLING = Labelling()
MEANS = st.floats(-20.0, 0.0)
# How sure a device may be of up to four texts that it has read and two that it has not.
TOLD = st.lists(st.tuples(st.integers(0, 1), st.floats(0.0, 1.0)), max_size=4).map(
    lambda pairs: told_of(*pairs)
)
PACED = replace(CONFIG, labelling=LABELLING)
FEWER = settings(max_examples=settings().max_examples // 2)
Says = Callable[[StepOpened, str, str], Answered]


def told_of(*pairs: tuple[int, float]) -> Confidences:
    """What a device says that is so sure of these labels, and holds two more texts."""
    labels, confidences = [label for label, _ in pairs], [sure for _, sure in pairs]
    return counted(len(pairs) + 2, labels, confidences, 2)


def says(opened: StepOpened, work_id: str, device_id: str) -> Answered:
    """A device that has texts, and answers evaluations better from round to round."""
    done = answered(work_id, device_id)
    if opened.kind == "evaluate":
        return replace(done, update_sha256=None, labelled=1, right=min(4, opened.round_index))
    return replace(done, update_sha256=None, labelled=3) if opened.kind == "label" else done


def run(config: RunConfig, say: Says = says, until: str = "") -> tuple[State, list[Event]]:
    """A run in which everybody answers at once, until a kind of step is open or nobody is there."""
    log: list[Event] = []
    state = proceed(State("first"), config, 0.0, log)
    while state.step is not None and state.phase != until:
        for pair in state.step.members.items():
            log.append(say(state.step.opened, *pair))
            state = evolve(state, log[-1])
        state = proceed(state, config, 1.0, log)
    return state, log


def opened(log: list[Event], kind: str) -> list[StepOpened]:
    return [event for event in log if isinstance(event, StepOpened) and event.kind == kind]


@pytest.mark.parametrize(
    ("every", "rounds"), [(1, [1, 2, 3, 4, 5]), (2, [1, 3, 5]), (4, [1, 5]), (9, [1])]
)
def test_labelling_comes_before_every_fth_round(every: int, rounds: list[int]) -> None:
    config = replace(PACED, rounds=5, labelling=Labelling(infer_every=every))
    state, log = run(config)
    assert [step.round_index for step in opened(log, "label")] == rounds
    assert [step.round_index for step in opened(log, "train")] == [1, 2, 3, 4, 5]
    assert state.is_finished and state.labelled == rounds[-1]


def test_labelling_stands_between_evaluation_and_training() -> None:
    _, log = run(replace(PACED, rounds=1))
    steps = [(e.kind, e.round_index) for e in log if isinstance(e, StepOpened)]
    assert steps == [("evaluate", 0), ("label", 1), ("train", 1), ("evaluate", 1)]


@pytest.mark.parametrize("evaluate_every", [0, 1])
def test_with_ridge_regression_the_first_labels_are_by_it(evaluate_every: int) -> None:
    """Before it is solved nobody reads a text, and then it is evaluated, so that it labels."""
    labelling = Labelling(infer_every=2)
    config = replace(PACED, adapter="lora:8+ridge", rounds=5, labelling=labelling)
    _, log = run(replace(config, evaluate_every=evaluate_every))
    steps = [(e.kind, e.round_index) for e in log if isinstance(e, StepOpened)]
    expected = [("evaluate", 0), ("train", 1), ("evaluate", 1), ("label", 2), ("train", 2)]
    assert steps[:5] == expected
    first, *others = opened(log, "label")
    assert first.adapter_sha256 == opened(log, "evaluate")[1].adapter_sha256
    assert [step.round_index for step in others] == [3]  # not before the last, which calibrates


def test_where_ridge_regression_lacks_labelled_texts_devices_label_before_it() -> None:
    def without(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        told = says(opened, work_id, device_id)
        return replace(told, labelled=0, confidences=told_of((0, 0.99), (1, 0.99)))

    _, log = run(replace(PACED, adapter="lora:8+ridge", rounds=2), without)
    assert [step.round_index for step in opened(log, "label")] == [1, 2]


def test_labelling_changes_no_adapter() -> None:
    assert run(PACED)[0].adapter_sha256 == run(CONFIG)[0].adapter_sha256
    state = State("first")
    for event in run(PACED)[1]:
        before, state = state, evolve(state, event)
        if before.step is not None and before.step.opened.kind == "label":
            assert state.adapter_sha256 == before.adapter_sha256


@st.composite
def interleaved(draw: st.DrawFn) -> list[Event]:
    """The journal of a run whose devices say and fail what they like, in any order and again."""
    labelling = Labelling(
        infer_every=draw(st.integers(1, 3)), infer_clients=draw(st.integers(0, 3))
    )
    config = replace(PACED, labelling=labelling, max_cohort=draw(st.integers(0, 3)))
    log: list[Event] = []
    state = proceed(State("first"), config, 0.0, log)
    for _ in range(8):
        if state.step is None:
            break
        members = draw(st.permutations(list(state.step.members.items())))
        for work_id, device_id in [*members, *members[:1]]:
            told = st.one_of(st.none(), st.integers(0, 2))
            answer = replace(
                answered(work_id, device_id, draw(st.sampled_from(["done", "done", "failed"]))),
                labelled=draw(told),
                right=draw(told),
                confidences=draw(st.none() | TOLD),
                mean_log_probabilities=draw(st.just(()) | st.tuples(MEANS, MEANS)),
            )
            after = evolve(state, answer)
            log += [answer] if after != state else []
            state = proceed(after, config, 1.0, log)
    return log


@FEWER
@given(interleaved(), st.data())
def test_a_run_cut_anywhere_goes_on_as_it_was(log: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    state = reduce(evolve, log[:cut], State("first"))
    again = replay("first", [decode_event(encode_event(event)) for event in log[:cut]])
    assert again == state
    assert decide(PACED, again, DEVICES, "s", 9.0) == decide(PACED, state, DEVICES, "s", 9.0)


@FEWER
@given(interleaved())
def test_nobody_known_to_have_no_text_is_asked_to_train(log: list[Event]) -> None:
    state = State("first")
    for event in log:
        if isinstance(event, StepOpened) and event.kind == "train":
            least = thresholds_before(PACED, state, event.round_index)
            for _, device_id in event.members:
                sure = state.confidences.get(device_id, told_of()).sure(least)
                assert state.texts.get(device_id) != 0 or sure > 0
            assert state.labelled > state.round_index - 3 and event.members
        state = evolve(state, event)


@FEWER
@given(interleaved())
def test_labels_come_from_the_first_or_the_newest_evaluated_adapter(log: list[Event]) -> None:
    state = State("first")
    for event in log:
        if isinstance(event, StepOpened) and event.kind == "label":
            assert event.adapter_sha256 in ("first", state.evaluated_sha256)
        state = evolve(state, event)


@pytest.mark.parametrize(
    ("scores", "adapter"),
    [
        ({0: (50, 100), 4: (51, 100)}, "fourth"),
        ({0: (50, 100), 4: (5, 10)}, "fourth"),
        ({0: (50, 100), 4: (49, 100)}, "first"),
        ({0: (1, 3), 2: (3, 3), 4: (333_333, 10**6)}, "first"),
        ({0: (50, 100), 3: (10, 100)}, "fourth"),  # nobody could tell
        ({4: (0, 100)}, "fourth"),
        ({}, "fourth"),
    ],
)
def test_the_gate_asks_whether_the_newest_evaluated_adapter_does_worse(
    scores: dict[int, tuple[int, int]], adapter: str
) -> None:
    told = {index: Score(*score) for index, score in scores.items()}
    state = State("fifth", 5, 4, first_sha256="first", evaluated_sha256="fourth", scores=told)
    assert labels_with(LABELLING, state) == (adapter, 4 if adapter == "fourth" else 0)
    assert labels_with(replace(LABELLING, is_gated=False), state) == ("fifth", 5)


def test_an_adapter_that_does_worse_does_not_label() -> None:
    def worse(step: StepOpened, work_id: str, device_id: str) -> Answered:
        answer = says(step, work_id, device_id)
        return replace(answer, right=4 - step.round_index) if step.kind == "evaluate" else answer

    def second(say: Says) -> str:
        return opened(run(PACED, say)[1], "label")[1].adapter_sha256

    assert second(worse) == "first"
    assert second(says) == "(first+a=u-a,b=u-b,c=u-c)"


def test_scores_are_sums_over_those_that_keep_texts() -> None:
    def partly(step: StepOpened, work_id: str, device_id: str) -> Answered:
        answer = says(step, work_id, device_id)
        if step.kind == "evaluate" and device_id != "a":
            return replace(answer, right=None, num_examples=0)
        return replace(answer, num_examples=7)

    state, log = run(PACED, partly)
    stands = [replay("first", log[:end]) for end in range(len(log) + 1)]
    found = {one.evaluated: one.scores[one.evaluated] for one in stands if one.evaluated >= 0}
    assert found == {index: Score(index, 7, median=index / 7, devices=3) for index in range(4)}
    assert state.scores == {index: found[index] for index in (0, 3)}  # all that the gate compares


def say_texts(**texts: int) -> Says:
    """Devices with so many gold labels after labelling, none before, and sure of nothing."""

    def say(step: StepOpened, work_id: str, device_id: str) -> Answered:
        answer = says(step, work_id, device_id)
        if step.kind == "train":
            return answer
        return replace(answer, labelled=texts[device_id] if step.kind == "label" else 0)

    return say


def test_devices_with_a_gold_label_are_asked_to_train() -> None:
    config = replace(PACED, rounds=1)
    _, log = run(config, say_texts(a=2, b=0, c=1))
    assert [name for _, name in opened(log, "train")[0].members] == ["a", "c"]


def test_with_nobody_to_train_the_run_waits_for_somebody() -> None:
    state, log = run(PACED, say_texts(a=0, b=0, c=0))
    assert not opened(log, "train") and state.phase == "waiting" and state.labelled == 1
    event = decide(PACED, state, [*DEVICES, "new"], "s", 9.0)
    assert isinstance(event, StepOpened) and [name for _, name in event.members] == ["new"]


def test_without_labelling_too_a_device_without_labels_is_not_asked_to_train() -> None:
    def say(step: StepOpened, work_id: str, device_id: str) -> Answered:
        return replace(says(step, work_id, device_id), labelled=0 if device_id == "b" else 3)

    state, log = run(CONFIG, say)
    asked = [[name for _, name in step.members] for step in opened(log, "train")]
    assert state.is_finished and asked == [["a", "c"]] * CONFIG.rounds


def test_a_failed_training_says_nothing_about_texts() -> None:
    state, _ = run(PACED, until="train")
    assert state.step is not None
    work_id, device_id = next(iter(state.step.members.items()))
    failed = Answered(work_id, "failed", None, 0, labelled=0)
    assert evolve(state, failed).texts[device_id] == 3


def test_labelling_is_over_when_all_have_answered_or_failed_or_at_the_deadline() -> None:
    state, _ = run(PACED, until="label")
    assert state.step is not None
    over = StepClosed("first", 99.0)
    assert decide(PACED, state, DEVICES, "s", 99.0) is None  # CONFIG's deadline is 100 s
    assert decide(PACED, state, DEVICES, "s", 101.0) == StepClosed("first", 101.0)
    for work_id, device_id in state.step.members.items():
        state = evolve(state, answered(work_id, device_id, "failed"))
    assert decide(PACED, state, DEVICES, "s", 99.0) == over
    assert evolve(state, over).labelled == 1


def test_only_so_many_devices_label_and_train() -> None:
    config = replace(PACED, max_cohort=1, labelling=Labelling(infer_clients=2))
    _, log = run(config)
    assert {len(step.members) for step in opened(log, "label")} == {2}
    assert {len(step.members) for step in opened(log, "train")} == {1}


NEW_FIELDS = ("labelled", "right", "confidences", "mean_log_probabilities")


def as_older(event: Event) -> str:
    """The event as it was written before devices told how sure they are."""
    fields = json.loads(encode_event(event))
    if fields["event"] == "Answered":
        fields = {name: fields[name] for name in fields if name not in NEW_FIELDS}
        fields["trainable"] = 3
    return json.dumps(fields)


@pytest.mark.parametrize("config", [CONFIG, PACED])
def test_an_older_journal_still_replays(config: RunConfig) -> None:
    state, log = run(config)
    again = replay("first", [decode_event(as_older(event)) for event in log])
    untold = frozenset(DEVICES)  # an old answer without texts looks like a device without tests
    known = replace(state, texts={}, scores={}, good=None, patience=Patience())
    assert again == replace(known, without_tests=untold)
    assert again.is_finished and not again.confidences and not again.priors
