"""The state machine alone: no server, no clock, thousands of interleavings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Finished,
    Resumed,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.tasks.task import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
CONFIG = RunConfig("run", TASK, rounds=3, min_clients=2, deadline_s=100.0)
DEVICES = ("a", "b", "c")


def answered(work_id: str, device_id: str, outcome: str = "done") -> Answered:
    return Answered(work_id, "done" if outcome == "done" else "failed", f"u-{device_id}", 4)


def aggregated(state: State) -> str:
    """Stands for the mean: names what went into it."""
    assert state.step is not None
    parts = [f"{name}={answer.update_sha256}" for name, answer in state.step.updates()]
    return f"({state.adapter_sha256}+{','.join(parts)})"


def proceed(state: State, config: RunConfig, now_s: float, log: list[Event]) -> State:
    """Decide and evolve until there is something to wait for."""
    while event := decide(config, state, DEVICES, "secret", now_s):
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            event = replace(event, adapter_sha256=aggregated(state))
        state = evolve(state, event)
        log.append(event)
    return state


def run(config: RunConfig, deal: st.DataObject | None = None) -> tuple[State, list[Event]]:
    """A whole run; with `deal`, answers come in any order, again, late and from nowhere."""
    log: list[Event] = []
    old: list[Answered] = [answered("nowhere", "x")]
    state = proceed(State("first"), config, 0.0, log)
    while not state.is_finished:
        assert state.step is not None
        answers = [answered(*pair) for pair in state.step.members.items()]
        if deal is not None:
            extra = deal.draw(st.lists(st.sampled_from(answers + old), max_size=4))
            answers = deal.draw(st.permutations(answers + extra))
        for answer in answers:
            after = evolve(state, answer)
            if after != state:
                log.append(answer)
            state = proceed(after, config, 1.0, log)
        old += answers
    return state, log


@given(st.data())
def test_any_interleaving_ends_in_the_same_adapter(deal: st.DataObject) -> None:
    state, log = run(CONFIG, deal)
    assert state.adapter_sha256 == run(CONFIG)[0].adapter_sha256
    assert replay("first", log) == state


@given(st.data())
def test_the_journal_gives_every_state_back(deal: st.DataObject) -> None:
    _, log = run(replace(CONFIG, fraction=0.7), deal)
    state = State("first")
    for place, event in enumerate(log, start=1):
        state = evolve(state, event)
        assert replay("first", [decode_event(encode_event(item)) for item in log[:place]]) == state


def kinds(log: list[Event]) -> list[tuple[str, int]]:
    return [(e.kind, e.round_index) for e in log if isinstance(e, StepOpened)]


def test_steps_alternate_and_the_run_finishes() -> None:
    state, log = run(replace(CONFIG, rounds=2))
    assert kinds(log) == [
        ("evaluate", 0),
        ("train", 1),
        ("evaluate", 1),
        ("train", 2),
        ("evaluate", 2),
    ]
    assert isinstance(log[-1], Finished) and state.phase == "finished"
    assert state.adapter_sha256 == "((first+a=u-a,b=u-b,c=u-c)+a=u-a,b=u-b,c=u-c)"


@pytest.mark.parametrize(("every", "evaluated"), [(0, [0, 3]), (1, [0, 1, 2, 3]), (2, [0, 2, 3])])
def test_evaluations_come_when_due_and_last(every: int, evaluated: list[int]) -> None:
    _, log = run(replace(CONFIG, evaluate_every=every))
    assert [index for kind, index in kinds(log) if kind == "evaluate"] == evaluated


def test_the_first_round_waits_for_enough_devices() -> None:
    assert decide(CONFIG, State("first"), ["a"], "s", 0.0) is None
    assert decide(CONFIG, State("first"), ["b", "a"], "s", 0.0) is not None


def training(config: RunConfig = CONFIG) -> State:
    """A run whose first training step is open since second 0."""
    return proceed(State("first", evaluated=0), config, 0.0, [])


def answer(state: State, *answers: tuple[str, str]) -> State:
    assert state.step is not None
    work = {device_id: work_id for work_id, device_id in state.step.members.items()}
    for device_id, outcome in answers:
        state = evolve(state, answered(work[device_id], device_id, outcome))
    return state


def test_a_failed_member_counts_as_answered_and_weighs_nothing() -> None:
    state = answer(training(), ("a", "done"), ("b", "failed"), ("c", "done"))
    assert decide(CONFIG, state, DEVICES, "s", 1.0) == StepClosed(None, 1.0)
    assert aggregated(state) == "(first+a=u-a,c=u-c)"


def test_the_deadline_closes_with_what_is_there() -> None:
    state = answer(training(), ("b", "done"))
    assert decide(CONFIG, state, DEVICES, "s", 99.0) is None
    assert decide(CONFIG, state, DEVICES, "s", 100.0) == StepClosed(None, 100.0)


def test_too_few_at_the_deadline_is_another_attempt() -> None:
    config = replace(CONFIG, min_updates=2)
    state = answer(training(config), ("b", "done"))
    event = decide(config, state, DEVICES, "s", 100.0)
    assert isinstance(event, StepOpened) and (event.round_index, event.attempt) == (1, 2)
    again = evolve(state, event)
    assert again.step is not None and state.step is not None
    assert not again.step.answers and not set(again.step.members) & set(state.step.members)


def test_a_round_that_fails_at_once_is_not_asked_in_a_hot_loop() -> None:
    state = answer(training(), *((name, "failed") for name in DEVICES))
    assert decide(CONFIG, state, DEVICES, "s", 1.9) is None
    event = decide(CONFIG, state, DEVICES, "s", 2.0)
    assert isinstance(event, StepOpened) and event.attempt == 2


def test_another_attempt_waits_for_devices() -> None:
    config = replace(CONFIG, min_updates=2)
    assert decide(config, training(config), ["a"], "s", 1000.0) is None


def test_an_evaluation_that_nobody_answers_is_asked_for_three_times() -> None:
    state = proceed(State("first"), CONFIG, 0.0, [])
    assert decide(CONFIG, state, DEVICES, "s", 99.0) is None
    for attempt in (2, 3):
        event = decide(CONFIG, state, DEVICES, "s", (attempt - 1) * 100.0)
        assert isinstance(event, StepOpened) and (event.kind, event.attempt) == (
            "evaluate",
            attempt,
        )
        state = evolve(state, event)
    assert decide(CONFIG, state, DEVICES, "s", 300.0) == StepClosed("first", 300.0)


def test_a_restart_costs_no_device_its_deadline() -> None:
    state = answer(training(), ("b", "done"))
    resumed = evolve(state, Resumed(5000.0))
    assert decide(CONFIG, resumed, DEVICES, "s", 5099.0) is None
    assert resumed.step is not None and state.step is not None
    assert resumed.step.answers == state.step.answers


def test_work_ids_cannot_be_guessed_without_the_secret() -> None:
    one = decide(CONFIG, State("first"), DEVICES, "s", 0.0)
    other = decide(CONFIG, State("first"), DEVICES, "t", 0.0)
    assert isinstance(one, StepOpened) and isinstance(other, StepOpened)
    assert not set(dict(one.members)) & set(dict(other.members))


def test_a_step_is_not_closed_before_it_is_aggregated() -> None:
    with pytest.raises(ValueError, match="adapter after it"):
        evolve(training(), StepClosed(None, 0.0))
    with pytest.raises(ValueError, match="open step"):
        evolve(State("first"), StepClosed("second", 0.0))


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"event":"Nothing"}', '{"event":"Finished"}'])
def test_a_damaged_journal_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="not an event"):
        decode_event(line)
