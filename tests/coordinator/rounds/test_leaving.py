"""Devices that cannot take part: they leave, nobody waits for them, and they may come back."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Event,
    Left,
    Returned,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import ASK_AGAIN_S, decide, devices_needed
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve, replay
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, answered, proceed


def left_after_the_first_evaluation(*names: str) -> tuple[State, list[Event]]:
    log: list[Event] = []
    state = proceed(State("first"), CONFIG, 0.0, log)
    assert state.step is not None
    for work_id, device_id in state.step.members.items():
        is_gone = device_id in names
        event = Left(device_id, "texts", 1.0) if is_gone else answered(work_id, device_id)
        state = evolve(state, event)
        log.append(event)
    return proceed(state, CONFIG, 1.0, log), log


def asked(state: State) -> list[str]:
    return sorted(state.step.members.values()) if state.step else []


def test_a_device_that_left_is_not_asked_again() -> None:
    state, _ = left_after_the_first_evaluation("b")
    assert state.left == {"b": "texts"} and asked(state) == ["a", "c"]


def test_it_is_asked_again_once_it_is_back() -> None:
    state, log = left_after_the_first_evaluation("a", "b", "c")
    assert state.step is None and state.phase == "waiting"
    assert decide(CONFIG, state, DEVICES, "secret", 2.0) is None
    log.append(Returned("b", 3.0))
    state = evolve(state, log[-1])
    event = decide(CONFIG, state, DEVICES, "secret", 3.0)
    assert isinstance(event, StepOpened) and [name for _, name in event.members] == ["b"]
    assert replay("first", log) == state


def test_the_first_round_does_not_count_those_that_left() -> None:
    state = replace(State("first"), left={"a": "budget", "b": "texts"})
    assert decide(CONFIG, state, DEVICES, "secret", 0.0) is None


@given(st.lists(st.sampled_from(DEVICES)))
def test_coming_back_twice_is_coming_back_once(names: list[str]) -> None:
    state = replace(State("first"), left={"a": "budget", "b": "texts"})
    for name in names:
        state = evolve(state, Returned(name, 1.0))
    assert state.left.keys() == {"a", "b"} - set(names)


def test_the_journal_keeps_who_left_and_who_came_back() -> None:
    _, log = left_after_the_first_evaluation("b")
    for event in [*log, Returned("b", 2.0)]:
        assert decode_event(encode_event(event)) == event


def test_work_that_a_device_has_open_when_it_leaves_is_not_waited_for() -> None:
    """Also where it says so in answer to older work, whose step has long closed."""
    log: list[Event] = []
    state = proceed(State("first"), CONFIG, 0.0, log)
    for name in ("a", "b"):
        state = evolve(state, Left(name, "disk", 1.0))
    assert state.step is not None and len(state.step.answers) == 2
    assert {answer.failure for answer in state.step.answers.values()} == {"disk"}


def texts_of(state: State, **texts: int) -> State:
    return replace(state, step=None, evaluated=0, evaluations=1, closed_at_s=10.0, texts=texts)


def test_where_nobody_has_a_text_to_train_on_everybody_is_asked_again_in_a_minute() -> None:
    state = texts_of(State("first"), a=0, b=0, c=0)
    assert decide(CONFIG, state, DEVICES, "secret", 11.0) is None
    event = decide(CONFIG, state, DEVICES, "secret", 10.0 + ASK_AGAIN_S)
    assert isinstance(event, StepOpened) and len(event.members) == 3
    assert (event.kind, event.round_index, event.attempt) == ("evaluate", 0, 2)
    state = evolve(evolve(state, event), StepClosed("first", 80.0))
    assert (state.evaluated, state.evaluations, state.closed_at_s) == (0, 2, 80.0)


def left_alone(config: RunConfig) -> tuple[State, list[Event]]:
    """A training step is open, both whom it asks have left, and c has no text to train on."""
    log: list[Event] = []
    state = proceed(State("first"), config, 0.0, log)
    assert state.step is not None
    for work_id, name in state.step.members.items():
        log.append(replace(answered(work_id, name), labelled=5 * (name != "c")))
        state = evolve(state, log[-1])
    state = proceed(state, config, 1.0, log)
    assert state.phase == "train" and asked(state) == ["a", "b"]
    for name in ("a", "b"):
        log.append(Left(name, "texts", 2.0))
        state = evolve(state, log[-1])
    return state, log


@pytest.mark.parametrize("rule", [None, Asynchronous(buffer=2)])
def test_a_training_step_whose_members_are_gone_is_given_up_to_ask_who_is_there(
    rule: Asynchronous | None,
) -> None:
    config = replace(CONFIG, asynchronous=rule)
    state, log = left_alone(config)
    assert decide(config, state, ["c"], "secret", ASK_AGAIN_S) is None
    for attempt, labelled in ((2, 0), (3, 7)):  # once a minute
        at_s = state.closed_at_s + ASK_AGAIN_S
        assert decide(config, state, ["c"], "secret", at_s - 1.0) is None
        event = decide(config, state, ["c"], "secret", at_s)
        assert isinstance(event, StepOpened) and [name for _, name in event.members] == ["c"]
        assert (event.kind, event.round_index, event.attempt) == ("evaluate", 0, attempt)
        told = replace(answered(event.members[0][0], "c"), labelled=labelled)
        for one in (event, told, StepClosed("first", at_s)):
            state = evolve(state, one)
            log.append(one)
    training = decide(config, state, ["c"], "secret", at_s)
    assert isinstance(training, StepOpened) and [name for _, name in training.members] == ["c"]
    assert (training.kind, training.round_index, training.attempt) == ("train", 1, 2)
    assert replay("first", [decode_event(encode_event(event)) for event in log]) == state


def test_a_training_step_stays_open_while_somebody_trains_for_longer_than_it_may_take() -> None:
    log: list[Event] = []
    state = proceed(State("first"), CONFIG, 0.0, log)
    assert state.step is not None
    for work_id, name in state.step.members.items():
        state = evolve(state, replace(answered(work_id, name), labelled=5 * (name == "a")))
    state = proceed(state, CONFIG, 1.0, log)
    assert state.phase == "train" and asked(state) == ["a"]
    # Who trains does not poll: c alone is there, and has no text.
    assert decide(CONFIG, state, ["c"], "secret", 10 * CONFIG.deadline_s) is None


def test_a_training_step_that_somebody_may_answer_when_back_stays_open_where_nobody_is() -> None:
    state, _ = left_alone(CONFIG)
    assert decide(CONFIG, state, [], "secret", 1e6) is None


def test_a_device_that_is_back_may_hold_texts_by_now() -> None:
    state = replace(texts_of(State("first"), a=0), left={"a": "texts"})
    event = decide(CONFIG, evolve(state, Returned("a", 11.0)), ["a"], "secret", 11.0)
    assert isinstance(event, StepOpened) and event.kind == "train"


def test_how_many_devices_are_needed_is_the_same_for_all_who_say_it() -> None:
    state = State("first")
    assert devices_needed(CONFIG, state) == CONFIG.min_clients
    assert devices_needed(CONFIG, replace(state, evaluated=0)) == 1
