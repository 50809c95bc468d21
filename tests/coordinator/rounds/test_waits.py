"""A look that says that nothing is due, whoever is there, is right."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Answered, Paused, StepClosed, StepOpened
from smidgen.coordinator.rounds.machine import decide, waits
from smidgen.coordinator.rounds.scheduling.step import Asynchronous, Underway
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.training import Labelling

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
PLAIN = RunConfig("run", TASK, rounds=3, min_clients=2, deadline_s=100.0)
CONFIGS = (
    PLAIN,
    replace(PLAIN, over_selection=2.0, fraction=0.5),
    replace(PLAIN, labelling=Labelling()),
    replace(PLAIN, asynchronous=Asynchronous(buffer=1)),
    replace(PLAIN, min_updates=2),
)
DEVICES = ("a", "b", "c", "d")


@given(st.data(), st.sampled_from(CONFIGS))
def test_what_waits_has_nothing_due_whoever_is_there(
    deal: st.DataObject, config: RunConfig
) -> None:
    state, now_s = State("first"), 0.0
    for _ in range(12):
        there = deal.draw(st.sets(st.sampled_from(DEVICES)))
        event = decide(config, state, there, "secret", now_s)
        if waits(config, state, now_s):
            assert event is None
        if isinstance(event, StepClosed):
            event = replace(event, adapter_sha256=event.adapter_sha256 or f"after {now_s}")
        if event is not None:
            state = evolve(state, event)
        open_work = sorted(state.step.members) if state.step else []
        for work_id in deal.draw(st.sets(st.sampled_from(open_work))) if open_work else ():
            outcome = deal.draw(st.sampled_from(("done", "failed")))
            state = evolve(state, Answered(work_id, outcome, "u", 4))  # type: ignore[arg-type]
        if deal.draw(st.integers(0, 9)) == 0:
            state = evolve(state, Paused(now_s))
        now_s += deal.draw(st.sampled_from((0.0, 1.0, 99.0, 700.0)))


def test_a_step_that_is_open_waits_until_its_deadline_or_the_last_answer() -> None:
    opened = decide(PLAIN, State("first"), DEVICES, "secret", 0.0)
    assert opened is not None
    state = evolve(State("first"), opened)
    assert waits(PLAIN, state, 99.0) and not waits(PLAIN, state, 100.0)
    assert state.step is not None
    for work_id in state.step.members:
        assert waits(PLAIN, state, 1.0)
        state = evolve(state, Answered(work_id, "done", None, 4))
    assert not waits(PLAIN, state, 1.0) and not waits(PLAIN, State("first"), 0.0)


def test_fewer_devices_than_a_round_needs_updates_are_not_asked_to_evaluate_again() -> None:
    config = replace(PLAIN, min_clients=3, min_updates=3)
    state, there, now_s = State("first"), set("abc"), 0.0
    while state.round_index == 0 or state.evaluated == 0:
        event = decide(config, state, there, "secret", now_s)
        assert event is not None
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            event = replace(event, adapter_sha256="second")
        state = evolve(state, event)
        for work_id in state.step.members if state.step else ():
            state = evolve(state, Answered(work_id, "done", "u", 4, labelled=4))
    for later_s in (1.0, 100.0, 10_000.0):
        assert decide(config, state, {"a", "b"}, "secret", now_s + later_s) is None
    opened = decide(config, state, there, "secret", now_s + 20_000.0)
    assert isinstance(opened, StepOpened) and opened.kind == "train"


def test_updates_of_asynchronous_rounds_that_are_in_already_count_for_the_next() -> None:
    config = replace(PLAIN, min_clients=3, min_updates=3, asynchronous=Asynchronous(buffer=3))
    works = {
        f"w{name}": Underway(name, 1, "first", 0.0, Answered(f"w{name}", "done", "u", 4))
        for name in "ab"
    }
    state = State("first", round_index=1, evaluated=1, underway=works, texts={"x": 0})
    event = decide(config, state, {"x"}, "secret", 100.0)
    assert isinstance(event, StepOpened) and event.kind == "evaluate"
    assert decide(config, replace(state, underway={}), {"x"}, "secret", 100.0) is None
