"""A journal that was folded gives what the whole one would: laws over whole runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Left,
    Paused,
    Resumed,
    Returned,
    RolledBack,
    StepClosed,
    StepOpened,
    Unpaused,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import (
    LONG,
    Past,
    folded_from,
    history_of,
    is_long,
    to_plain,
    without,
)
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.scheduling.step import StepAnswers
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.coordinator.upkeep.retention import RetainedAdapters, folded
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.rounds.test_label_steps import told_of
from tests.coordinator.rounds.test_machine import CONFIG, DEVICES, aggregated, answered

LABELLING = replace(CONFIG, rounds=6, labelling=Labelling(infer_every=2, infer_clients=2))
CONFIGS = (replace(CONFIG, rounds=6), replace(CONFIG, rounds=6, fraction=0.5), LABELLING)


def history(deal: st.DataObject, config: RunConfig) -> list[Event]:
    """A run of anything that may happen: answers, failures, pauses, orders, restarts, silence."""
    log: list[Event] = []
    state, now_s = State("first"), 0.0

    def take(event: Event) -> None:
        nonlocal state
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            event = replace(event, adapter_sha256=aggregated(state)[-64:])
        log.append(event)
        state = evolve(state, event)

    for _ in range(deal.draw(st.integers(0, 60))):
        now_s += deal.draw(st.sampled_from((0.1, 1.0, 70.0, 101.0)))
        name, texts = deal.draw(st.sampled_from(DEVICES)), deal.draw(st.integers(0, 9))
        happens = deal.draw(st.integers(0, 11))
        others: tuple[Event, ...] = (
            Left(name, "disk", now_s),
            Returned(name, now_s),
            Paused(now_s, "why"),
            Unpaused(now_s),
            Resumed(now_s),
            RolledBack(0, "first", "ordered", now_s, is_ordered=True),
        )
        if happens < len(others):
            take(others[happens])
        for work_id, device_id in state.step.members.items() if state.step else ():
            assert state.step is not None
            done = answered(work_id, device_id, deal.draw(st.sampled_from(("done", "failed"))))
            done = replace(done, labelled=texts, norm=texts / 3, took_s=now_s / 7)
            if state.step.opened.kind == "evaluate":
                told = (-0.1, -0.5)
                done = replace(done, right=texts // 3, mean_log_probabilities=told)
            if state.step.opened.kind == "label":
                done = replace(done, confidences=told_of((0, 0.9), (1, texts / 10)))
            take(done)
        while event := decide(config, state, DEVICES, "secret", now_s):
            take(event)
    return log


def read_back(event: Event) -> Event:
    """An event as it comes from the disk."""
    return decode_event(encode_event(event))


def folded_at(log: Sequence[Event], places: Sequence[int], keep_rounds: int) -> list[Event]:
    """A journal that was folded after so many of its events, each time as it stood then."""
    journal, seq = list[Event](), 0
    for event in log:
        journal.append(read_back(event))
        seq += 1
        for _ in range(places.count(seq)):
            shelf, state = folded(RetainedAdapters(keep_rounds), State("first"), journal)
            _, past = history_of("first", journal)
            if past.best_round is not None:
                assert past.best == (past.best_round, shelf.best_score)
            journal = [read_back(folded_from(seq, state, past, to_plain(shelf), (), ()))]
            seq += 1
    return journal


@given(st.data(), st.sampled_from(CONFIGS), st.integers(0, 4))
def test_a_folded_journal_gives_what_the_whole_one_gives(
    deal: st.DataObject, config: RunConfig, keep_rounds: int
) -> None:
    log = history(deal, config)
    places = deal.draw(st.lists(st.integers(1, len(log) + 3), max_size=5))
    short = folded_at(log, places, keep_rounds)
    whole = replay("first", log)
    again = replay("first", short)
    assert again == whole
    assert to_plain(again) == to_plain(whole)  # what no comparison looks at, too
    assert history_of("first", short) == history_of("first", log)
    began = RetainedAdapters(keep_rounds), State("first")
    assert folded(*began, short) == folded(*began, log)
    now_s = max(whole.closed_at_s, whole.step.opened.opened_at_s if whole.step else 0.0)
    for later_s in (0.0, 1.5, 99.0, 1e5):
        for alive in ((), DEVICES[:2], DEVICES):
            due = [decide(config, one, alive, "secret", now_s + later_s) for one in (whole, again)]
            assert due[0] == due[1]


def test_what_a_journal_was_folded_to_may_come_in_the_middle() -> None:
    """Of whoever reads a journal while it is folded: a part before, then what stands for all."""
    event = folded_from(7, State("other", round_index=3), Past({0: "other"}), {}, (), ())
    log: list[Event] = [Paused(1.0), read_back(event), Unpaused(2.0)]
    assert replay("first", log) == State("other", round_index=3)
    assert history_of("first", log)[1].adapters == {0: "other"}


def test_of_very_many_rounds_the_first_the_best_and_the_newest_are_known() -> None:
    past = Past({0: "a0"})
    for index in range(1, 40):
        past = past.plus(Past({index: f"a{index}"})).newest(10)
    assert sorted(past.adapters) == [0, *range(30, 40)]


def test_a_journal_is_long_by_its_events_and_by_those_that_are_asked() -> None:
    assert not is_long(LONG - 1, ()) and is_long(LONG, ())


ANSWERS = st.lists(st.text("abcdef", min_size=1, max_size=2), unique=True, max_size=12)


@given(ANSWERS, st.data())
def test_answers_are_a_mapping_that_never_changes(names: list[str], deal: st.DataObject) -> None:
    """Whatever is grown from whatever, as a dict of its own would be."""
    grown: list[tuple[StepAnswers, dict[str, Answered]]] = [(StepAnswers(), {})]
    for name in names * 2:
        one, copy = deal.draw(st.sampled_from(grown))
        if name in copy:
            with pytest.raises(ValueError, match="answered already"):
                one.plus(answered(name, "x"))
            continue
        grown.append((one.plus(answered(name, "x")), copy | {name: answered(name, "x")}))
    for one, copy in grown:
        assert one == copy and list(one.items()) == list(copy.items())
        assert list(one.values()) == list(copy.values()) and len(one) == len(copy)
        assert all((name in one) == (name in copy) for name in names)


@given(st.data(), st.sampled_from(CONFIGS))
def test_what_is_left_of_a_journal_without_a_device_tells_nothing_of_it(
    deal: st.DataObject, config: RunConfig
) -> None:
    events, name = history(deal, config), DEVICES[0]
    kept = without(events, {name})
    replay("first", kept)
    assert without(kept, {name}) == kept and without(events, {"somebody else"}) == events
    assert not any(getattr(one, "device_id", "") == name for one in kept)
    asked = [one for one in kept if isinstance(one, StepOpened)]
    assert not any(name in dict(one.members).values() for one in asked)
    answers = [one.work_id for one in kept if isinstance(one, Answered)]
    assert set(answers) <= {work_id for one in asked for work_id, _ in one.members}
    assert all(one in events for one in asked if one.kind != "evaluate")  # as they were
