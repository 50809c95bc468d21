"""What operators ask of a run: to stand still, to go on, to end, to go on for longer."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import (
    Event,
    Extended,
    Finished,
    Paused,
    Resumed,
    StepClosed,
    StepOpened,
    Unpaused,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import decide, devices_needed, rounds_of
from smidgen.coordinator.rounds.orders import OrderError, OrderKind, event_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, answered, proceed, run

KINDS: tuple[OrderKind, ...] = ("pause", "resume", "stop", "extend")
LABELLED = replace(CONFIG, labelling=Labelling())
TIMES = st.floats(0.0, 1e6).map(lambda at: round(at * 8) / 8)  # sums of them are exact


def shifted(state: State, by_s: float) -> State:
    """A state as it would be if everything had happened later."""
    step = state.step
    if step is not None:
        opened = replace(step.opened, opened_at_s=step.opened.opened_at_s + by_s)
        step = replace(step, opened=opened)
    return replace(state, step=step, closed_at_s=state.closed_at_s + by_s)


def later(event: Event | None, by_s: float) -> Event | None:
    """What is decided, as it would be if everything had happened later."""
    if isinstance(event, StepOpened):
        return replace(event, opened_at_s=event.opened_at_s + by_s)
    if isinstance(event, StepClosed):
        return replace(event, closed_at_s=event.closed_at_s + by_s)
    if isinstance(event, Finished):
        return replace(event, finished_at_s=event.finished_at_s + by_s)
    return event


@st.composite
def states(draw: st.DrawFn) -> State:
    """Somewhere in a run: between two steps, or in one, some answers in."""
    config = draw(st.sampled_from((CONFIG, LABELLED)))
    _, log = run(config)
    return replay("first", log[: draw(st.integers(0, len(log)))])


def ordered(state: State, kind: OrderKind, rounds: int | None, now_s: float) -> Event | None:
    try:
        return event_of(kind, rounds, CONFIG, state, now_s)
    except OrderError:
        return None


@given(states(), TIMES, TIMES, TIMES)
def test_a_pause_changes_nothing_but_times(
    state: State, at_s: float, for_s: float, now_s: float
) -> None:
    assume(not state.is_finished)
    after = evolve(evolve(state, Paused(at_s)), Unpaused(at_s + for_s))
    assert after == shifted(state, for_s)
    expected = later(decide(CONFIG, state, DEVICES, "secret", now_s), for_s)
    assert decide(CONFIG, after, DEVICES, "secret", now_s + for_s) == expected


@given(states(), TIMES, TIMES)
def test_nothing_is_due_while_a_run_is_paused(state: State, at_s: float, now_s: float) -> None:
    assume(not state.is_finished)
    paused = evolve(state, Paused(at_s))
    assert paused.phase == "paused"
    assert decide(CONFIG, paused, DEVICES, "secret", now_s) is None


def test_an_answer_that_comes_in_a_pause_counts() -> None:
    state = proceed(State("first"), CONFIG, 0.0, [])
    assert state.step is not None
    paused = evolve(state, Paused(1.0))
    for pair in state.step.members.items():
        paused = evolve(paused, answered(*pair))
    event = decide(CONFIG, evolve(paused, Unpaused(900.0)), DEVICES, "secret", 900.0)
    assert event == StepClosed("first", 900.0)


@given(TIMES, TIMES, TIMES, TIMES)
def test_a_coordinator_that_comes_back_in_a_pause_gives_the_whole_deadline(
    opened_s: float, paused_s: float, back_s: float, on_s: float
) -> None:
    opened_s, paused_s, back_s, on_s = sorted((opened_s, paused_s, back_s, on_s))
    state = proceed(State("first"), CONFIG, opened_s, [])
    for event in (Paused(paused_s), Resumed(back_s), Unpaused(on_s)):
        state = evolve(state, event)
    assert state.step is not None and state.step.opened.opened_at_s == on_s


@given(st.data())
def test_a_run_with_orders_is_replayed_as_it_was(deal: st.DataObject) -> None:
    """Whatever is ordered between whichever events; orders that do not fit are refused."""
    log: list[Event] = []
    state = proceed(State("first"), CONFIG, 0.0, log)
    for now_s in range(1, 60):
        kind = deal.draw(st.sampled_from((*KINDS, None, None, None)))
        events: list[Event | None] = []
        if kind is None:
            pairs = list(state.step.members.items()) if state.step else []
            events += [answered(*pair) for pair in pairs]
        else:
            rounds = deal.draw(st.none() | st.integers(0, 9))
            events.append(ordered(state, kind, rounds, float(now_s)))
        for event in events:
            if event is not None:
                state = evolve(state, event)
                log.append(event)
        state = proceed(state, CONFIG, float(now_s), log)
        assert not (state.is_paused and state.is_finished)
    assert replay("first", [decode_event(encode_event(item)) for item in log]) == state


@pytest.mark.parametrize("rounds", [4, 7])
def test_a_finished_run_that_is_extended_goes_on_as_a_longer_one(rounds: int) -> None:
    state, log = run(CONFIG)
    state = evolve(state, Extended(rounds, 5.0))
    assert (state.phase, rounds_of(CONFIG, state)) == ("waiting", rounds)
    state = proceed(state, CONFIG, 5.0, log)
    while not state.is_finished:
        assert state.step is not None
        for pair in state.step.members.items():
            state = evolve(state, answered(*pair))
        state = proceed(state, CONFIG, 5.0, log)
    assert state.adapter_sha256 == run(replace(CONFIG, rounds=rounds))[0].adapter_sha256
    assert isinstance(log[-1], Finished) and not state.is_stopped


def test_a_run_that_goes_on_after_its_end_waits_for_as_many_as_at_its_beginning() -> None:
    ended, _ = run(CONFIG)
    state = evolve(ended, Extended(CONFIG.rounds + 2, 5.0))
    few = DEVICES[: CONFIG.min_clients - 1]
    assert devices_needed(CONFIG, state) == CONFIG.min_clients
    assert decide(CONFIG, state, few, "secret", 1e6) is None
    opened = decide(CONFIG, state, DEVICES, "secret", 1e6)
    assert isinstance(opened, StepOpened) and len(opened.members) >= CONFIG.min_clients
    assert devices_needed(CONFIG, evolve(state, opened)) == 1


def test_a_run_that_is_extended_on_its_way_goes_on_with_who_is_there() -> None:
    _, log = run(CONFIG)
    state = replay("first", log[: len(log) // 2])
    assert devices_needed(CONFIG, evolve(state, Extended(CONFIG.rounds + 2, 5.0))) == 1


def test_a_stopped_run_asks_nothing_more_and_keeps_its_last_adapter() -> None:
    state = proceed(State("first"), CONFIG, 0.0, [])
    state = evolve(evolve(state, Paused(1.0)), event_of("stop", None, CONFIG, state, 2.0))
    assert (state.phase, state.is_stopped, state.step) == ("finished", True, None)
    assert state.adapter_sha256 == "first"
    assert decide(CONFIG, state, DEVICES, "secret", 1e9) is None


def test_what_was_open_as_a_run_was_stopped_is_asked_again_as_other_work() -> None:
    before = proceed(State("first"), CONFIG, 0.0, [])
    assert before.step is not None
    state = evolve(before, event_of("stop", None, CONFIG, before, 2.0))
    state = evolve(state, event_of("extend", CONFIG.rounds + 1, CONFIG, state, 3.0))
    opened = decide(CONFIG, state, DEVICES, "secret", 4.0)
    assert isinstance(opened, StepOpened)
    assert (opened.kind, opened.round_index) == (
        before.step.opened.kind,
        before.step.opened.round_index,
    )
    assert not {work_id for work_id, _ in opened.members} & before.step.members.keys()


def test_a_stopped_run_goes_on_to_the_end_it_had() -> None:
    state = evolve(State("first"), Finished(1.0, is_stopped=True))
    with pytest.raises(OrderError, match="1 to 1000000"):
        event_of("extend", 0, CONFIG, state, 2.0)
    state = evolve(state, event_of("extend", CONFIG.rounds, CONFIG, state, 2.0))
    assert isinstance(decide(CONFIG, state, DEVICES, "secret", 2.0), StepOpened)


@pytest.mark.parametrize(
    ("kind", "rounds", "said"),
    [
        ("resume", None, "not paused"),
        ("extend", None, "4 to 1000000"),
        ("extend", 3, "3 came"),
        ("extend", 2_000_000, "1000000 are expected"),
    ],
)
def test_what_cannot_be_followed_is_refused(kind: OrderKind, rounds: int | None, said: str) -> None:
    with pytest.raises(OrderError, match=said):
        event_of(kind, rounds, CONFIG, State("first"), 0.0)


def test_a_run_is_not_extended_to_rounds_that_learn_nothing() -> None:
    falling = replace(CONFIG, rounds=10, learning=Learning(optimizer="fedadam", decay=0.09))
    ended = State("first", round_index=10, is_finished=True)
    assert event_of("extend", 11, falling, ended, 0.0) == Extended(11, 0.0)
    said = r"0\.09 x 12 rounds leave no learning rate; below 1 in all; extend it to fewer rounds"
    with pytest.raises(OrderError, match=said):
        event_of("extend", 12, falling, ended, 0.0)


def test_what_is_so_already_is_refused() -> None:
    with pytest.raises(OrderError, match="paused already"):
        event_of("pause", None, CONFIG, evolve(State("first"), Paused(0.0)), 0.0)
    for kind in ("pause", "resume", "stop"):
        with pytest.raises(OrderError, match="`extend` lets it go on"):
            event_of(kind, None, CONFIG, run(CONFIG)[0], 0.0)


def test_a_journal_from_before_runs_could_be_stopped_is_read() -> None:
    assert decode_event('{"event": "Finished", "finished_at_s": 1.0}') == Finished(1.0)
