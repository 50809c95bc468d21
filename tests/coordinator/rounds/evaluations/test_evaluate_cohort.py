"""Evaluations by a cohort: who is asked, what they stand for, and what the gate makes of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Returned,
    StepClosed,
    StepOpened,
    decode_event,
)
from smidgen.coordinator.rounds.machine import decide, labels_with
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.rounds.selection import cohort, evaluators
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.rounds.test_machine import CONFIG

FLEET = [f"device-{number:02}" for number in range(40)]
IDS = st.lists(st.text(min_size=1, max_size=4), unique=True, min_size=1, max_size=30)
TENTH = replace(CONFIG, rounds=20, evaluate_cohort=4)


@given(IDS, st.integers(0, 40), st.randoms())
def test_a_number_in_any_order(ids, evaluate_cohort, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(ids, len(ids))
    chosen, population = evaluators(ids, (), evaluate_cohort, "7", 3, 1)
    assert (chosen, population) == evaluators(shuffled, (), evaluate_cohort, "7", 3, 1)
    assert len(set(chosen)) == min(evaluate_cohort or len(ids), len(ids)) and set(chosen) <= set(
        ids
    )
    assert population == len(ids)


@given(IDS, st.sets(st.integers(0, 29)), st.integers(1, 40))
def test_who_holds_no_tests_is_asked_last(ids: list[str], places: set[int], size: int) -> None:
    without = {name for place, name in enumerate(ids) if place in places}
    chosen, population = evaluators(ids, without, size, "7", 3, 1)
    able = len(ids) - len(without)
    assert sum(name not in without for name in chosen) == min(size, able)
    assert len(chosen) == min(size, len(ids)) and population == max(able, len(chosen))


def test_rounds_draw_anew_and_not_as_the_cohort_that_trains() -> None:
    draws = {evaluators(FLEET, (), 10, "0", index, 1)[0] for index in range(1, 6)}
    draws |= {evaluators(FLEET, (), 10, "0", 1, 2)[0]}
    draws |= {cohort(FLEET, 0.25, "0", index, 1) for index in range(1, 6)}
    assert len(draws) == 11


def evaluated(without: frozenset[str] = frozenset()) -> tuple[State, list[Event]]:
    """Rounds of four devices each, in which those without tests say so."""
    log: list[Event] = []
    state, now_s = State("first"), 0.0
    while (event := decide(TENTH, state, FLEET, "secret", now_s)) and state.round_index < 10:
        if isinstance(event, StepClosed):
            event = replace(event, adapter_sha256=f"a{state.round_index}")
        log.append(event)
        state = evolve(state, event)
        for work_id, name in state.step.members.items() if state.step else ():
            right = None if name in without else 3
            log.append(Answered(work_id, "done", "u", 0 if right is None else 4, right=right))
            state = evolve(state, log[-1])
    return state, log


def test_devices_without_tests_are_learnt_and_left_alone() -> None:
    without = frozenset(FLEET[::2])
    state, log = evaluated(without)
    steps = [one for one in log if isinstance(one, StepOpened) and one.kind == "evaluate"]
    assert all(len(one.members) == 4 for one in steps)
    assert state.without_tests and state.without_tests <= without
    known = {name for one in steps[:-1] for _, name in one.members} & without
    assert steps[-1].population == len(FLEET) - len(known)
    asked = [name for one in steps for _, name in one.members if name in without]
    assert len(asked) == len(set(asked))  # nobody twice
    assert replay("first", log) == state


def test_a_device_that_is_back_may_hold_tests_by_now() -> None:
    state = State("first", without_tests=frozenset({"a", "b"}))
    assert evolve(state, Returned("a", 1.0)).without_tests == {"b"}


def test_a_journal_of_before_there_were_cohorts_is_read() -> None:
    line = (
        '{"adapter_sha256": "x", "attempt": 1, "event": "StepOpened", "kind": "evaluate", '
        '"members": [["w", "d"]], "opened_at_s": 1.0, "round_index": 0}'
    )
    assert decode_event(line) == StepOpened("evaluate", 0, 1, "x", (("w", "d"),), 1.0, 0)


@pytest.mark.parametrize(
    ("newest", "labels"),
    [
        (Score(49, 100, 0.1), "newest"),  # lower, but by less than its error
        (Score(10, 100, 0.05), "first"),
        (Score(49, 100), "first"),  # everybody was asked
    ],
)
def test_the_gate_closes_where_the_error_leaves_no_doubt(newest: Score, labels: str) -> None:
    state = State("first", evaluated=3, evaluated_sha256="newest", round_index=3)
    state = replace(state, scores={0: Score(50, 100), 3: newest})
    assert labels_with(Labelling(), state)[0] == labels


def test_the_score_of_a_cohort_has_an_error_and_that_of_everybody_none() -> None:
    state, _ = evaluated()
    assert state.scores[0].error == 0.0  # all equally right
    opened = StepOpened("evaluate", 5, 1, "x", (("u", "a"), ("v", "b"), ("w", "c")), 0.0, 40)
    state = evolve(State("first", round_index=5), opened)
    for work_id, right in (("u", 1), ("v", 3), ("w", None)):
        state = evolve(state, Answered(work_id, "done", None, 4 if right else 0, right=right))
    event = decide(TENTH, state, FLEET, "secret", 1.0)
    assert event is not None
    score = evolve(state, event).scores[5]
    assert score[:2] == (4, 8) and score.error == pytest.approx(0.2082, abs=1e-4)
