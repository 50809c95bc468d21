"""Which blobs stay: laws over whole journals, without a store."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import Answered, Event, StepClosed, StepOpened
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.upkeep.retention import (
    RetainedAdapters,
    adapters_kept,
    blobs_kept,
    folded,
    of_finished,
    shelved,
    updates_kept,
)
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES

LONG = replace(CONFIG, rounds=12)


def journal(right: list[int], until: int = 10_000) -> list[Event]:
    """A run whose devices are so often right after each round, as far as that many events."""
    log: list[Event] = []
    state = State("a0")
    while len(log) < until and (event := decide(LONG, state, DEVICES, "secret", 0.0)):
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            event = replace(event, adapter_sha256=f"a{state.round_index + 1}")
        log.append(event)
        state = evolve(state, event)
        opened = state.step.opened if state.step else None
        for work_id, name in state.step.members.items() if state.step else ():
            assert opened is not None
            answer = Answered(work_id, "done", f"u{opened.round_index}-{name}", 10)
            if opened.kind == "evaluate":
                answer = replace(answer, update_sha256=None, right=right[opened.round_index])
            log.append(answer)
            state = evolve(state, answer)
    return log[:until]


def kept(log: list[Event], keep_rounds: int) -> tuple[RetainedAdapters, State]:
    return folded(RetainedAdapters(keep_rounds), State("a0"), log)


UP = list(range(13))


def test_first_last_best_and_the_last_rounds_stay() -> None:
    shelf, state = kept(journal([0, 0, 2, *[1] * 10]), 3)
    assert state.is_finished
    assert adapters_kept(shelf, state) == {"a0", "a2", "a10", "a11", "a12"}
    assert adapters_kept(of_finished(shelf), state) == {"a0", "a2", "a12"}


def best_of(log: Sequence[Event]) -> int | None:
    return history_of("a0", log)[1].best_round


def test_of_equals_the_newest_is_the_best() -> None:
    shelf, _ = kept(journal([5] * 13), 0)
    assert shelf.best == "a12" and best_of(journal([5] * 13)) == 12
    assert best_of(journal([0, 0, 2, *[1] * 10])) == 2


@given(st.integers(0, 100), st.integers(0, 20), st.lists(st.integers(0, 10), min_size=13))
def test_what_a_step_starts_from_and_what_it_got_stays(
    until: int, keep_rounds: int, right: list[int]
) -> None:
    shelf, state = RetainedAdapters(keep_rounds), State("a0")
    opened: list[StepOpened] = []
    for event in journal(right, until):
        before, state = state, evolve(state, event)
        shelf = shelved(shelf, before, event, state)
        opened += [event] if isinstance(event, StepOpened) else []
        stays = blobs_kept(shelf, state)
        assert {one.adapter_sha256 for one in opened[-3:]} | {state.adapter_sha256} <= stays
        answers = state.step.answers.values() if state.step else ()
        assert {answer.update_sha256 for answer in answers if answer.update_sha256} <= stays
        rounds = range(max(1, state.round_index - keep_rounds + 1), state.round_index + 1)
        assert {f"a{index}" for index in rounds} <= stays


@given(st.lists(st.integers(0, 10), min_size=13), st.integers(0, 4))
def test_what_stays_is_bounded_and_no_update_outlives_its_step(
    right: list[int], keep_rounds: int
) -> None:
    shelf, state = kept(journal(right), keep_rounds)
    assert not updates_kept(state)
    assert len(adapters_kept(shelf, state)) <= keep_rounds + 3 + 3
    assert len(shelf.recent) <= keep_rounds and len(shelf.asked) <= 3


def test_history_tells_every_round() -> None:
    _, found = history_of("a0", journal(UP))
    assert found.adapters == {index: f"a{index}" for index in range(13)}
    rights = {index: score.right for index, score in found.scores.items()}
    assert rights == {index: 3 * index for index in range(13)}


def test_a_round_that_was_the_best_is_exported_as_long_as_it_is_kept() -> None:
    log = journal([5, 9, *[0] * 11])
    again = [one for one in log if isinstance(one, StepOpened) and one.kind == "evaluate"][1]
    assert again.round_index == 1
    log = log[: log.index(again)]
    for number, right in enumerate((9, 1)):  # it is evaluated twice
        members = tuple((f"{number}{name}", name) for name in DEVICES)
        log.append(replace(again, attempt=1 + number, members=members))
        log += [Answered(work_id, "done", None, 10, right=right) for work_id, _ in members]
        log.append(StepClosed("a1", 0.0))
    shelf, state = kept(log, 0)
    assert state.scores[1].accuracy < state.scores[0].accuracy
    assert shelf.best == "a1" and best_of(log) == 1
