"""More devices are asked than count: the first in the journal do, whatever comes after them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    StepClosed,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.selection import cohort
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.tasks.task import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
CONFIG = RunConfig("run", TASK, rounds=3, fraction=0.5, over_selection=1.5, deadline_s=100.0)
DEVICES = tuple("abcdefgh")


def training(config: RunConfig = CONFIG) -> State:
    state = State("first", evaluated=0)
    opened = decide(config, state, DEVICES, "secret", 0.0)
    assert opened is not None
    return evolve(state, opened)


def done(work_id: str, device_id: str) -> Answered:
    return Answered(work_id, "done", f"u-{device_id}", 4)


def test_the_cohort_and_half_as_many_are_asked() -> None:
    step = training().step
    assert step is not None
    assert (len(step.members), step.opened.enough) == (6, 4)
    alone = training(replace(CONFIG, over_selection=1.0)).step
    assert alone is not None and (len(alone.members), alone.opened.enough) == (4, 0)
    assert set(alone.members.values()) <= set(step.members.values())


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.floats(1.0, 3.0), st.integers(0, 20))
def test_those_that_are_asked_to_spare_are_added_to_the_cohort(
    number: int, fraction: float, over: float, most: int
) -> None:
    names = [f"d{index}" for index in range(number)]
    known = (names, fraction, "s", 1, 1, most)
    assert set(cohort(*known)) <= set(cohort(*known, over))
    assert len(cohort(*known, over)) <= number


@given(st.data())
def test_the_first_answers_of_the_journal_count_and_a_replay_agrees(deal: st.DataObject) -> None:
    state, log = training(), list[Event]()
    assert state.step is not None
    first = state
    answers = [done(*pair) for pair in state.step.members.items()]
    failing = deal.draw(st.sets(st.sampled_from(range(6)), max_size=2))
    answers = [
        replace(one, outcome="failed", update_sha256=None) if index in failing else one
        for index, one in enumerate(answers)
    ]
    answers = deal.draw(st.permutations(answers + answers[:2]))
    for answer in answers:
        state = evolve(state, answer)
        log.append(answer)
    assert state.step is not None
    counted = dict.fromkeys(one.work_id for one in answers if one.outcome == "done")
    members = state.step.members
    expected = sorted(members[work_id] for work_id in list(counted)[:4])
    assert [name for name, _ in state.step.updates()] == expected
    assert decide(CONFIG, state, DEVICES, "secret", 1.0) == StepClosed(None, 1.0)
    again = first
    for event in log:
        again = evolve(again, decode_event(encode_event(event)))
    assert again == state


def test_whoever_is_too_late_does_not_rest() -> None:
    state = training()
    assert state.step is not None
    for pair in list(state.step.members.items())[:4]:
        state = evolve(state, done(*pair))
    state = evolve(state, StepClosed("next", 5.0))
    assert not state.silences and replay("next", []).silences == state.silences


def test_at_the_deadline_those_that_are_missing_rest_as_ever() -> None:
    state = training()
    assert state.step is not None
    for pair in list(state.step.members.items())[:3]:
        state = evolve(state, done(*pair))
    assert decide(CONFIG, state, DEVICES, "secret", 99.0) is None
    assert decide(CONFIG, state, DEVICES, "secret", 100.0) == StepClosed(None, 100.0)
    assert len(evolve(state, StepClosed("next", 100.0)).silences) == 3


@pytest.mark.parametrize("over", [0.9, 10.1, float("nan")])
def test_an_over_selection_that_makes_no_sense_is_refused(over: float) -> None:
    with pytest.raises(ConfigError, match="over_selection: 1 to 10"):
        replace(CONFIG, over_selection=over)
