"""Journals folded on disk: the chain goes on, and a cut leaves the old one or the new one."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sqlalchemy as sql

from smidgen.coordinator.api.create import start_of
from smidgen.coordinator.rounds import history
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Folded,
    Paused,
    Unpaused,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import Past, folded_from, to_plain
from smidgen.coordinator.rounds.state import State, replay
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.journals import next_link
from smidgen.coordinator.storage.runs import state_of
from smidgen.coordinator.storage.schema import EVENTS, RUNS
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import behind, look, note, watched
from smidgen.coordinator.upkeep.retention import RetainedAdapters
from tests.command_line import smidgen
from tests.coordinator.upkeep.stores import filled


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are long by a few events."""
    monkeypatch.setattr(history, "LONG", 10)
    monkeypatch.setattr(history, "TIMES", 0)


def stand_in(store: Store, run_id: str, extra: int = 0) -> Folded:
    """What a run's journal so far is folded to; `extra` makes it another one."""
    run = next(run for run in store.runs() if run.run_id == run_id)
    events = store.events(run_id)
    state = replace(replay(run.adapter_sha256, events), steps=extra)
    end = store.ends()[run_id].seq + 1
    return folded_from(
        end, state, Past({0: run.adapter_sha256}), to_plain(RetainedAdapters()), (), ()
    )


def stands(store: Store) -> State:
    """Where the only run stands, by its journal."""
    return state_of(store, store.runs()[0])


def pauses(store: Store, run_id: str, count: int) -> None:
    seq = store.ends()[run_id].seq + 1
    events: list[Event] = [Paused(float(one)) if one % 2 else Unpaused(1.0) for one in range(count)]
    store.append_all([(run_id, seq + place, event) for place, event in enumerate(events)])


def test_the_chain_goes_on_over_what_was_folded(store: Store) -> None:
    run_id = filled(store, "one", 2, 2, open_updates=1).run_id
    with watched(store):
        for _ in range(3):
            before = stands(store)
            store.fold(run_id, stand_in(store, run_id, extra=before.steps))
            assert stands(store) == before and not look(store).lines
            pauses(store, run_id, 3)
            assert len(store.events(run_id)) == 4 and not look(store).lines
    with watched(store):
        pass


def test_a_head_that_lags_behind_a_fold_is_fine(store: Store) -> None:
    """A process that is killed between the commit and the line beside it."""
    run_id = filled(store, "one", 2, 2).run_id
    note(store).close()
    store.fold(run_id, stand_in(store, run_id))  # nobody notes
    assert not behind(store)


def changed(payload: str) -> str:
    event = decode_event(payload)
    assert isinstance(event, Folded)
    return encode_event(replace(event, state=event.state | {"round_index": 99}))


@pytest.mark.few(2)
@pytest.mark.parametrize("damage", ["removed", "changed", "exchanged", "run", "all"])
def test_a_damaged_stand_in_is_noticed(store: Store, damage: str) -> None:
    run_id = filled(store, "one", 2, 2).run_id
    with watched(store):
        store.fold(run_id, stand_in(store, run_id))
        pauses(store, run_id, 2)
    rows = store.database.rows(sql.select(EVENTS).order_by(EVENTS.c.seq))
    first = EVENTS.c.seq == rows[0]["seq"]
    payload = changed(rows[0]["payload"])
    link = {"chain": next_link(stand_in_of(rows[0]["payload"]).link, payload)}
    damages: dict[str, sql.Executable] = {
        "removed": sql.delete(EVENTS).where(first),
        "changed": sql.update(EVENTS).where(first).values(payload=payload),
        "exchanged": sql.update(EVENTS).where(first).values(payload=payload, **link),
        "run": sql.update(RUNS).values(secret="other"),
        "all": sql.delete(EVENTS),
    }
    store.database.write(damages[damage])
    assert look(store).lines
    if damage == "all":
        assert behind(store)
    else:
        with pytest.raises(StoreError, match=run_id):
            store.events(run_id)


def stand_in_of(payload: str) -> Folded:
    event = decode_event(payload)
    assert isinstance(event, Folded)
    return event


def test_an_exchanged_stand_in_at_the_end_is_noticed_by_the_head(store: Store) -> None:
    run_id = filled(store, "one", 2, 2).run_id
    with watched(store):
        store.fold(run_id, stand_in(store, run_id))
    (row,) = store.database.rows(sql.select(EVENTS))
    payload = changed(row["payload"])
    link = next_link(stand_in_of(row["payload"]).link, payload)
    store.database.write(sql.update(EVENTS).values(payload=payload, chain=link))
    assert behind(store) == [f"the journal of run {run_id} is another one than it was"]


def test_a_fold_that_is_cut_leaves_the_journal_as_it_was(store: Store) -> None:
    run_id = filled(store, "one", 2, 2).run_id
    before, event = store.events(run_id), stand_in(store, run_id)
    twice = sql.insert(RUNS).values(**asdict(store.runs()[0]))
    with pytest.raises(StoreError):
        store.append_all([(run_id, event.events, event)], sql.delete(EVENTS), twice)
    assert store.events(run_id) == before


def test_whoever_reads_while_a_journal_is_folded_ends_with_all_of_it(store: Store) -> None:
    run_id = filled(store, "one", 2, 2).run_id
    pauses(store, run_id, 600)
    reading = store.journal(run_id)
    read = [next(reading)]
    store.fold(run_id, stand_in(store, run_id, extra=5))
    pauses(store, run_id, 3)
    whole = stands(store)
    read += reading
    assert len(read) == 504 and replay("", read) == whole


def test_a_ledger_that_folds_goes_on_as_one_that_does_not(store: Store, short: None) -> None:
    run_id = filled(store, "one", 3, 2, open_updates=1).run_id
    ledger = Ledger(store, 100.0)
    before = ledger.run(run_id)
    assert before is not None and before.state.step is not None
    assert ledger.shorten(run_id) and not ledger.shorten(run_id)
    assert len(store.events(run_id)) == 1
    again = Ledger(store, 200.0)
    after = again.run(run_id)
    assert after is not None and after.state.step is not None
    assert (after.shelf, after.works, after.past) == (before.shelf, before.works, before.past)
    assert after.state.step.answers == before.state.step.answers
    assert (again._asked, again._counted) == (ledger._asked, ledger._counted)
    assert again.kept() == ledger.kept()
    late = Answered(next(iter(before.works.values())), "done", None, 7)
    assert ledger.answer(run_id, late) == again.answer(run_id, late)


def test_a_journal_of_many_rounds_stays_short(store: Store, short: None) -> None:
    run_id = filled(store, "one", 1, 2, open_updates=1).run_id
    ledger = Ledger(store, 100.0)
    most = 0
    for one in range(200):
        live = ledger.run(run_id)
        assert live is not None
        ledger.append(live, Paused(float(one)) if one % 2 else Unpaused(float(one)))
        ledger.shorten(run_id)
        most = max(most, len(store.events(run_id)))
    assert most <= history.LONG
    assert not look(store).lines


def test_to_start_from_a_pruned_round_names_those_that_are_there(store: Store) -> None:
    run = filled(store, "one", 3, 2)
    (store.folder / "blobs" / run.adapters[2]).unlink()
    with pytest.raises(StoreError, match=r"round 2 is no longer kept .* of rounds 0, 1, 3$"):
        start_of(store, "one@2")


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["export", "rollback", "status", "figures", "from"])
def test_a_round_that_was_folded_away_is_told_in_one_line(
    store: Store, tmp_path: Path, command: str
) -> None:
    run = filled(store, "one", 3, 2, open_updates=1)
    known = Past({0: run.adapters[0], 3: run.adapters[3]})
    store.fold(run.run_id, replace(stand_in(store, run.run_id), past=to_plain(known)))
    if command == "from":
        with pytest.raises(StoreError, match=r"round 1 is no longer kept .* of rounds 0, 3$"):
            start_of(store, "one@1")
        return
    more = {
        "export": ["--round", "1", "--out", str(tmp_path / "out")],
        "rollback": ["--round", "1"],
    }
    asked = ["coordinator", command, "--store", str(store.folder), *more.get(command, [])]
    done = smidgen(*asked)
    if command in more:
        assert done.exit_code == 2 and done.stderr.count("\n") == 1 and "0, 3" in done.stderr
    else:
        assert done.exit_code == 0, done.stderr
