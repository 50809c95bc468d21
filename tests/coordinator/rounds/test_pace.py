"""Devices that are slow or silent, on a clock of its own: what they cost, and that they return."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Answered, Event, Resumed, StepClosed, StepOpened
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.scheduling.participation import (
    LONGEST_REST,
    Silence,
    after_step,
    awake,
)
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.tasks.task import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
CONFIG = RunConfig("run", TASK, rounds=10, min_clients=2)  # a deadline of 600 s
NEVER = float("inf")


@dataclass
class Told:
    """What came of a run: its state, its journal, how long it took, who was asked how often."""

    state: State
    log: list[Event]
    now_s: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    closed_with: list[int] = field(default_factory=list)


def run(config: RunConfig, takes_s: Mapping[str, float], until_s: float = 1e7) -> Told:
    """A run of devices that take so long for each piece of work, NEVER for those that hang."""
    told = Told(State("first"), [])
    while not told.state.is_finished and told.now_s < until_s:
        event = decide(config, told.state, takes_s, "secret", told.now_s)
        if event is None:
            told.now_s += 1.0
            for work_id, name in _due(told, takes_s):
                took_s = takes_s[name]
                answer = Answered(work_id, "done", f"u-{name}", 4, took_s=took_s)
                told.state = evolve(told.state, answer)
                told.log.append(answer)
            continue
        if isinstance(event, StepClosed):
            assert told.state.step is not None
            told.closed_with.append(len(told.state.step.updates()))
            event = replace(event, adapter_sha256=event.adapter_sha256 or f"after {told.now_s}")
        if isinstance(event, StepOpened):
            told.asked.update(name for _, name in event.members)
        told.state = evolve(told.state, event)
        told.log.append(event)
    return told


def _due(told: Told, takes_s: Mapping[str, float]) -> list[tuple[str, str]]:
    step = told.state.step
    if step is None:
        return []
    return [
        (work_id, name)
        for work_id, name in step.members.items()
        if work_id not in step.answers and told.now_s >= step.opened.opened_at_s + takes_s[name]
    ]


def test_a_device_that_hangs_is_asked_less_often_and_costs_little() -> None:
    told = run(CONFIG, {"a": 5.0, "b": 5.0, "c": NEVER})
    assert told.asked["a"] == told.asked["b"] == 21
    assert told.asked["c"] == 5  # of 21 steps: the 1st, 3rd, 6th, 11th and 20th
    assert told.now_s < 21 * 600 / 5  # at a deadline of 600 s each it would be 3.5 h


def test_a_fixed_deadline_is_waited_for_in_full() -> None:
    fixed = replace(CONFIG, adaptive_deadline=False)
    told = run(fixed, {"a": 5.0, "b": 5.0, "c": NEVER})
    assert told.asked["c"] == 5 and told.now_s >= 5 * 600
    opened = [event for event in told.log if isinstance(event, StepOpened)]
    assert {event.deadline_s for event in opened} == {0.0}


def test_where_everybody_answers_nobody_is_left_out() -> None:
    takes_s = {name: 2.0 + place for place, name in enumerate("abcdefghij")}
    told, fixed = run(CONFIG, takes_s), run(replace(CONFIG, adaptive_deadline=False), takes_s)
    assert set(told.asked.values()) == {21} and set(told.closed_with) == {10}
    assert told.state.adapter_sha256 == fixed.state.adapter_sha256 and not told.state.silences


@pytest.mark.few
@pytest.mark.parametrize("slow_s", [100.0, 250.0, 590.0])
@pytest.mark.parametrize("others", [2, 4, 24])
def test_a_slow_device_that_keeps_the_runs_own_deadline_gets_to_answer(
    slow_s: float, others: int
) -> None:
    takes_s = {f"d{place}": 5.0 for place in range(others)} | {"slow": slow_s}
    told = run(replace(CONFIG, rounds=60 if others > 9 else 30), takes_s)
    in_time = Counter(event.update_sha256 for event in told.log if isinstance(event, Answered))
    assert in_time["u-slow"] >= 5
    if others < 9:  # it is one of those whose time counts, from the first step on
        assert in_time["u-slow"] == 61


def test_work_that_grows_tenfold_is_waited_for_by_the_runs_own_deadline() -> None:
    takes_s = dict.fromkeys("abcd", 30.0)
    told = run(replace(CONFIG, rounds=3), takes_s)
    slower = {"a": 295.0, "b": 296.0, "c": 300.0, "d": 305.0}  # three times 30 is far below
    grown = replace(CONFIG, rounds=4)
    state = replace(told.state, is_finished=False)
    opened = decide(grown, state, slower, "s", told.now_s)
    assert isinstance(opened, StepOpened) and 0.0 < opened.deadline_s < 100.0
    state = evolve(state, opened)
    assert decide(grown, state, slower, "s", told.now_s + 599.0) is None
    for place, (work_id, name) in enumerate(opened.members):
        assert decide(grown, state, slower, "s", told.now_s + 300.0) is None or place >= 2
        state = evolve(state, Answered(work_id, "done", name, 4, took_s=slower[name]))


def test_who_answers_again_is_asked_in_every_step() -> None:
    silences: Mapping[str, Silence] = {}
    for step in range(1, 4):
        silences = after_step(silences, ["a", "b"], ["a"], step)
    assert silences == {"b": Silence(3, 8)}
    assert awake(["a", "b"], silences, 7) == {"a"} and awake(["a", "b"], silences, 8) == {"a", "b"}
    assert after_step(silences, ["a", "b"], ["b", "a"], 8) == {}


@given(st.integers(1, 10_000), st.integers(1, 200))
def test_nobody_rests_for_ever(step: int, misses: int) -> None:
    known = {"a": Silence(misses, step)}
    (again,) = after_step(known, ["a"], [], step).values()
    assert step + 1 < again.rests_until <= step + 1 + LONGEST_REST
    assert again.misses == misses + 1


def test_where_all_are_silent_all_are_asked() -> None:
    state = State("first", evaluated=0, steps=4)
    state = replace(state, silences={name: Silence(3, 99) for name in "ab"})
    opened = decide(CONFIG, state, "ab", "s", 1.0)
    assert isinstance(opened, StepOpened) and [name for _, name in opened.members] == ["a", "b"]


def test_an_evaluation_that_nobody_answers_is_made_up() -> None:
    state, devices, log = State("first"), ("a", "b"), list[Event]()
    for now_s in (0.0, 600.0):
        event = decide(CONFIG, state, devices, "s", now_s)
        assert isinstance(event, StepOpened) and event.kind == "evaluate"
        state = evolve(state, event)
        log.append(event)
    assert decide(CONFIG, state, (), "s", 1e6) is None  # nobody is there: it is waited for
    assert state.step is not None
    for work_id in state.step.members:
        answer = Answered(work_id, "done", None, 4, right=3)
        state = evolve(state, answer)
        log.append(answer)
    closed = decide(CONFIG, state, devices, "s", 601.0)
    assert closed == StepClosed("first", 601.0)
    state = evolve(state, closed)
    assert state.scores[0].accuracy == 0.75 and not state.silences
    assert replay("first", [*log, closed]) == state


def test_what_a_restart_broke_is_not_measured() -> None:
    told = run(replace(CONFIG, rounds=1), {"a": 5.0, "b": 5.0})
    state = replace(told.state, is_finished=False)
    opened = decide(replace(CONFIG, rounds=2), state, "ab", "s", told.now_s)
    assert isinstance(opened, StepOpened)
    state = evolve(evolve(state, opened), Resumed(told.now_s + 9.0))
    for work_id, name in opened.members:
        state = evolve(state, Answered(work_id, "done", name, 4, took_s=0.1))
    after = evolve(state, StepClosed("x", told.now_s + 10.0))
    assert after.times == told.state.times


def test_a_clock_that_was_set_back_asks_again_at_once() -> None:
    state = State("first", evaluated=0, texts={"a": 0}, closed_at_s=10_000.0)
    assert decide(CONFIG, state, ["a"], "s", 10_001.0) is None
    opened = decide(CONFIG, state, ["a"], "s", 2_800.0)
    assert isinstance(opened, StepOpened) and opened.kind == "evaluate"
