"""Buffered asynchronous rounds on a clock of their own: who waits for whom, and replays."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Answered,
    Event,
    Left,
    RolledBack,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import to_plain
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.policies import FULL, NO_TEXTS, RESTS, TRAINS
from smidgen.coordinator.rounds.scheduling.asking import answer_to, asynchronous, is_asked
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
RULE = Asynchronous(buffer=2, concurrency=3, most_staleness=4)
CONFIG = RunConfig("run", TASK, rounds=6, min_clients=2, asynchronous=RULE)
SPEEDS = {"a": 1.0, "b": 1.5, "c": 2.0, "slow": 20.0}


@dataclass
class Told:
    """What came of a run."""

    state: State = field(default_factory=lambda: State("first"))
    log: list[Event] = field(default_factory=list)
    now_s: float = 0.0
    versions: list[list[tuple[int, str]]] = field(default_factory=list)  # staleness, device
    most_at_work: int = 0

    def fold(self, event: Event) -> None:
        self.state = evolve(self.state, event)
        self.log.append(event)


def run(
    config: RunConfig = CONFIG,
    takes_s: Mapping[str, float] = SPEEDS,
    failing: frozenset[str] = frozenset(),
    until_s: float = 1e5,
) -> Told:
    """A run whose devices take so long for each piece of training, and a second for the rest."""
    told, coming = Told(), list[tuple[float, str, str]]()
    while not told.state.is_finished and told.now_s < until_s:
        event = decide(config, told.state, takes_s, "secret", told.now_s)
        if event is not None:
            if isinstance(event, StepClosed) and event.adapter_sha256 is None:
                step = told.state.step
                assert step is not None
                counted = [(step.staleness(key), step.members[key]) for key in step.counted()]
                told.versions.append(counted)
                event = replace(event, adapter_sha256=f"({told.state.adapter_sha256}{counted})")
            if isinstance(event, StepOpened | AlsoAsked):
                kind = event.kind if isinstance(event, StepOpened) else "train"
                for work_id, name in event.members:
                    took_s = takes_s[name] if kind == "train" else 1.0
                    heapq.heappush(coming, (told.now_s + took_s, name, work_id))
            told.fold(event)
            at_work = {
                one.device_id
                for key, one in asynchronous(told.state).items()
                if answer_to(told.state, key) is None
            }
            told.most_at_work = max(told.most_at_work, len(at_work))
            continue
        deadline_s = (
            told.state.step.opened.opened_at_s + config.deadline_s if told.state.step else 0
        )
        now_s = min([*(one[0] for one in coming[:1]), max(deadline_s, told.now_s + 1)])
        told.now_s = now_s
        while coming and coming[0][0] <= told.now_s:
            _, name, work_id = heapq.heappop(coming)
            outcome = "failed" if name in failing else "done"
            told.fold(Answered(work_id, outcome, f"u-{work_id}", 4, right=2))  # type: ignore[arg-type]
    return told


def test_a_slow_device_holds_nobody_up_and_counts_when_it_comes() -> None:
    patient = run(replace(CONFIG, asynchronous=None))
    told = run(replace(CONFIG, rounds=30, evaluate_every=10))
    assert told.state.is_finished and patient.state.is_finished
    assert patient.now_s >= 6 * 20.0
    assert told.now_s < 30 * 4.0
    stale = [
        staleness for version in told.versions for staleness, name in version if name == "slow"
    ]
    assert not stale or max(stale) <= RULE.most_staleness


HOME = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 10.0, "slow": 400.0}


def test_by_default_a_home_of_five_does_not_wait_for_its_slowest() -> None:
    config = replace(CONFIG, rounds=12, evaluate_every=0, asynchronous=Asynchronous())
    told = run(config, HOME)
    assert told.state.is_finished and told.now_s < 400.0
    assert {len(version) for version in told.versions} == {2}


def test_the_default_buffer_is_in_the_journal_and_replays_whoever_comes_and_goes() -> None:
    config = replace(CONFIG, rounds=12, evaluate_every=0, asynchronous=Asynchronous())
    told = run(config, HOME)
    opened = [one for one in told.log if isinstance(one, StepOpened) and one.kind == "train"]
    assert {one.enough for one in opened} == {2}
    again = replay("first", [decode_event(encode_event(one)) for one in told.log])
    assert again == told.state


@given(st.integers(1, 1000), st.integers(0, 50), st.integers(1, 20))
def test_a_buffer_that_is_not_said_never_needs_everybody(
    able: int, concurrency: int, said: int
) -> None:
    found = Asynchronous(concurrency=concurrency).enough(able)
    assert 1 <= found <= 10 and (found < min(able, concurrency or able) or found == 1)
    assert Asynchronous(said, concurrency).enough(able) == said


def test_devices_without_texts_do_not_make_the_buffer_larger() -> None:
    state = State("first", evaluated=0, texts=dict.fromkeys("cdef", 0))
    config = replace(CONFIG, asynchronous=Asynchronous())
    opened = decide(config, state, "abcdef", "secret", 0.0)
    assert isinstance(opened, StepOpened) and opened.enough == 1 and len(opened.members) == 2
    strict = decide(replace(config, min_updates=2), state, "abcdef", "secret", 0.0)
    assert isinstance(strict, StepOpened) and strict.enough == 2


def test_who_is_not_asked_hears_why_also_where_enough_updates_are_there() -> None:
    config = replace(CONFIG, asynchronous=replace(RULE, concurrency=0), evaluate_every=0)
    state = State("first", evaluated=0, texts={"e": 0})
    opened = decide(config, state, "abcdef", "secret", 0.0)
    assert isinstance(opened, StepOpened)
    assert [(one.reason, one.device_ids) for one in opened.passed] == [(NO_TEXTS, ("e",))]
    state = evolve(state, opened)
    for work_id, name in opened.members:
        if name != "f":
            state = evolve(state, Answered(work_id, "done", f"u-{name}", 4))
    state = evolve(state, StepClosed("second", 1.0))  # with two of the four updates
    again = decide(config, state, "abcdef", "secret", 1.0)
    assert isinstance(again, StepOpened) and again.members == ()
    told = {one.reason: one.device_ids for one in again.passed}
    assert told == {FULL: ("a", "b", "c", "d"), TRAINS: ("f",), NO_TEXTS: ("e",)}


def test_who_was_given_up_rests_and_is_not_said_to_have_no_texts() -> None:
    config = replace(CONFIG, asynchronous=replace(RULE, concurrency=0), evaluate_every=0)
    opened = decide(config, State("first", evaluated=0), "abc", "secret", 0.0)
    assert isinstance(opened, StepOpened)
    works = {name: work_id for work_id, name in opened.members}
    state = evolve(State("first", evaluated=0), opened)
    for name in "ab":
        state = evolve(state, Answered(works[name], "done", f"u-{name}", 4))
    state = evolve(state, StepClosed("second", 1.0))
    again = decide(config, state, "abc", "secret", config.deadline_s)
    assert isinstance(again, StepOpened) and again.given_up == (works["c"],)
    assert [(one.reason, one.device_ids) for one in again.passed] == [(RESTS, ("c",))]


def test_a_slow_device_is_heard_where_it_may_be_that_old() -> None:
    rule = replace(RULE, most_staleness=30)
    told = run(replace(CONFIG, rounds=40, evaluate_every=0, asynchronous=rule))
    stale = [
        staleness for version in told.versions for staleness, name in version if name == "slow"
    ]
    assert stale and max(stale) > 4


@given(
    st.integers(1, 5),
    st.integers(0, 5),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 50.0), min_size=2, max_size=6),
    st.integers(0, 8),
    st.integers(0, 3),
)
def test_the_laws_of_every_run(
    buffer: int, concurrency: int, takes_s: dict[str, float], most: int, every: int
) -> None:
    rule = Asynchronous(buffer, concurrency, most_staleness=most)
    config = replace(CONFIG, asynchronous=rule, rounds=5, evaluate_every=every, deadline_s=100.0)
    told = run(config, takes_s)
    assert told.state.is_finished and len(told.versions) == 5
    assert told.most_at_work <= (concurrency or len(takes_s))
    for version in told.versions:
        assert 1 <= len(version) <= buffer
        assert version == sorted(version, key=lambda one: (-one[0], one[1]))  # version, then device
        assert all(staleness <= most for staleness, _ in version)
    asked: set[tuple[str, str]] = set()  # by whom, from which adapter
    adapter = ""
    for event in told.log:
        if isinstance(event, StepOpened) and event.kind == "train":
            adapter = f"{event.adapter_sha256} {event.attempt}"
        if isinstance(event, AlsoAsked) or (
            isinstance(event, StepOpened) and event.kind == "train"
        ):
            pairs = {(name, adapter) for _, name in event.members}
            assert not pairs & asked
            asked |= pairs
    assert run(config, takes_s).log == told.log


def test_every_prefix_of_the_journal_gives_the_state_and_goes_on_to_the_same_end() -> None:
    told = run()
    lines = [encode_event(event) for event in told.log]
    state = State("first")
    for line in lines:
        state = evolve(state, decode_event(line))
        again = msgspec.convert(to_plain(state), State, str_keys=True)
        assert again == state  # what stands for a journal that was folded here
    assert state == told.state
    for place in range(0, len(lines), 3):  # a journal that was folded goes on to the same bytes
        known = replay("first", told.log[:place])
        if known.step is None:
            folded = msgspec.convert(to_plain(known), State, str_keys=True)
            for event in told.log[place:]:
                folded = evolve(folded, event)
            assert folded == told.state


def test_what_comes_while_others_evaluate_counts_in_the_next_version() -> None:
    told = run(replace(CONFIG, rounds=12))
    state, during = State("first"), 0
    for event in told.log:
        if isinstance(event, Answered) and state.step and state.step.opened.kind == "evaluate":
            during += event.work_id in state.underway
        state = evolve(state, event)
    assert during > 0
    counted = sum(len(version) for version in told.versions)
    assert counted == 12 * RULE.buffer


def test_devices_that_fail_at_everything_end_in_a_pause_and_no_hot_loop() -> None:
    told = run(failing=frozenset(SPEEDS), until_s=2000.0)
    assert told.state.is_paused and "every device failed at round 1" in told.state.trouble
    assert sum(isinstance(event, StepOpened) for event in told.log) < 12


def test_one_that_never_answers_is_given_up_after_the_deadline_and_rests() -> None:
    takes_s = {"a": 1.0, "b": 1.0, "gone": float("inf")}
    told = run(replace(CONFIG, rounds=100, evaluate_every=0, deadline_s=30.0), takes_s, until_s=200)
    lost = [e for e in told.log if isinstance(e, StepOpened) and e.given_up]
    assert lost and "gone" in told.state.silences
    assert told.state.is_finished


def test_going_back_forgets_what_starts_from_the_adapter_that_was_left() -> None:
    state = State("first")
    for event in run().log:
        state = evolve(state, event)
        if len(asynchronous(state)) >= 2:
            break
    works = list(asynchronous(state))
    back = evolve(state, RolledBack(0, "first", "so", 9.0, is_ordered=True))
    assert not asynchronous(back) and not any(is_asked(back, work_id) for work_id in works)


def test_a_device_that_leaves_is_waited_for_no_longer() -> None:
    state = State("first")
    for event in run().log:
        state = evolve(state, event)
        idle = [one for key, one in asynchronous(state).items() if not answer_to(state, key)]
        if idle and state.step is not None and state.step.opened.kind == "evaluate":
            break
    left = evolve(state, Left(idle[0].device_id, "revoked", 5.0))
    told = [one.answer for one in left.underway.values() if one.device_id == idle[0].device_id]
    assert told and all(one is not None and one.outcome == "failed" for one in told)


@given(st.floats(0, 10), st.integers(0, 1000))
@example(0.0, 1)
@example(10.0, 1)
def test_an_older_update_never_counts_more_than_a_newer(discount: float, staleness: int) -> None:
    rule = Asynchronous(discount=discount)
    assert 1.0 == rule.share(0) >= rule.share(staleness) >= rule.share(staleness + 1) >= 0.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"buffer": -1}, "buffer: 0 to"),
        ({"discount": float("nan")}, "discount: 0 to 10"),
        ({"most_staleness": -1}, "most_staleness: 0 to"),
        ({"concurrency": -1}, "concurrency: 0 to"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(WrongInput, match=said):
        Asynchronous(**wrong)  # type: ignore[arg-type]


def test_asynchronous_rounds_over_select_nobody_and_fill_their_buffer() -> None:
    with pytest.raises(ConfigError, match="over_selection: asynchronous rounds wait for nobody"):
        replace(CONFIG, over_selection=1.3)
    with pytest.raises(ConfigError, match="min_updates 2 is more than the buffer of 1"):
        replace(CONFIG, min_updates=2, asynchronous=Asynchronous(buffer=1))
