"""Early stopping: when a run ends by itself, and what it says then."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Extended,
    Finished,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.machine import decide, ended_of
from smidgen.coordinator.rounds.scheduling.participation import (
    Patience,
    after_score,
    lack_of_progress,
)
from smidgen.coordinator.rounds.scoring import Score
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.tasks.task import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
CONFIG = RunConfig("run", TASK, rounds=20, patience=2)
DEVICES = ("a", "b")


def run(rights: list[int], config: RunConfig = CONFIG, state: State | None = None) -> State:
    """A run whose evaluations find so many of 100 texts right; the last number stays."""
    state, heard = state or State("first"), 0
    while not state.is_finished:
        event = decide(config, state, DEVICES, "s", 0.0)
        assert event is not None
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            event = replace(event, adapter_sha256=f"after {state.round_index + 1}")
        state = evolve(state, decode_event(encode_event(event)))
        if not isinstance(event, StepOpened):
            continue
        right = rights[min(heard, len(rights) - 1)]
        heard += event.kind == "evaluate"
        for work_id, name in event.members:
            told = Answered(work_id, "done", f"u-{name}", 50, right=right // 2)
            if event.kind == "train":
                told = replace(told, right=None)
            state = evolve(state, told)
    return state


def test_a_run_that_finds_nothing_better_ends_and_says_why() -> None:
    state = run([20, 60, 80, 70, 80, 90])
    assert state.round_index == 4
    assert state.trouble == "no improvement on 80.0% in 2 evaluations"
    assert state.good is not None and state.good.round_index == 4  # of equals the newest


def test_without_patience_it_goes_on_to_its_last_round() -> None:
    state = run([80, 70], replace(CONFIG, patience=0))
    assert (state.round_index, state.trouble) == (20, "")


def test_a_run_that_is_extended_counts_from_zero() -> None:
    ended = run([20, 60, 50, 50])
    again = evolve(ended, Extended(20, 1.0))
    assert (again.trouble, again.patience.misses, again.is_finished) == ("", 0, False)
    assert run([50, 50], state=again).round_index == ended.round_index + 2


scores = st.builds(
    Score, st.integers(0, 50), st.just(50), st.one_of(st.none(), st.floats(0, 0.2)), st.none()
)


@given(st.lists(scores, max_size=20))
def test_misses_count_those_since_the_last_improvement(told: list[Score]) -> None:
    patience = Patience()
    for score in told:
        before, patience = patience, after_score(patience, score)
        if score.error is None:
            assert patience == before
        elif patience.misses == 0:
            assert patience.mark == score
        else:
            assert patience == Patience(before.mark, before.misses + 1)


def test_small_gains_add_up_to_an_improvement() -> None:
    patience = Patience()
    for right in (500, 510, 520, 530, 540, 550, 560):
        patience = after_score(patience, Score(right, 1000, 0.02))
    assert patience.mark == Score(560, 1000, 0.02)
    assert lack_of_progress(patience, 1) == ""


def test_an_evaluation_that_nobody_can_judge_does_not_count() -> None:
    known = after_score(Patience(), Score(5, 10, 0.0))
    assert after_score(known, Score(1, 10, None)) == known
    assert after_score(known, Score(0, 0)) == known


def test_it_is_told_why_a_run_ended() -> None:
    assert ended_of(CONFIG, State("first")) is None
    early = run([20, 60, 50, 50])
    assert ended_of(CONFIG, early) == "patience"
    assert ended_of(CONFIG, evolve(early, Extended(20, 1.0))) is None
    assert ended_of(CONFIG, run([50, 60, 70, 80, 90] + list(range(91, 100)) * 2)) == "patience"
    assert ended_of(CONFIG, run(list(range(40, 80)))) == "rounds"
    stopped = evolve(State("first"), Finished(1.0, is_stopped=True))
    assert ended_of(CONFIG, stopped) == "stopped"


def test_a_journal_of_before_says_no_reason() -> None:
    line = '{"event": "Finished", "finished_at_s": 1.0, "is_stopped": false}'
    assert decode_event(line) == Finished(1.0)
