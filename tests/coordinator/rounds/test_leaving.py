"""Devices that cannot take part: they leave, nobody waits for them, and they may come back."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coordinator.rounds.events import Event, Returned, StepOpened, decode_event, encode_event
from coordinator.rounds.machine import State, decide, evolve, replay
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, answered, proceed


def left_after_the_first_evaluation(*names: str) -> tuple[State, list[Event]]:
    log: list[Event] = []
    state = proceed(State("first"), CONFIG, 0.0, log)
    assert state.step is not None
    for work_id, device_id in state.step.members.items():
        answer = answered(work_id, device_id)
        if device_id in names:
            answer = replace(answered(work_id, device_id, "failed"), failure="texts")
            answer = replace(answer, is_leaving=True)
        state = evolve(state, answer)
        log.append(answer)
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
