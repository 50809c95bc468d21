"""Forgetting a device: its share is taken out of every adapter, and what is known of it is deleted.

    orders = ask_to_forget(store, device, now_s)  # by whoever; it is let in no more from here on
    event = without_forgotten(store, run, state, keep_rounds, now_s)  # by who serves

Exact unlearning by training again: later updates of other devices were trained from adapters that
hold its share, so no sum over them is free of it. A run goes back to the last adapter that the
device had no part in (`rounds.history.without`), and its rounds since then come again. One event
stands for the journal from then on, and tells nothing of the device.
"""

from collections.abc import Set
from dataclasses import replace

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Event, Finished, Folded, Paused
from smidgen.coordinator.rounds.history import (
    NOTHING,
    Past,
    folded_from,
    history_of,
    news_of,
    past_of,
    to_plain,
    without,
)
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.database import Statement, StoreError
from smidgen.coordinator.storage.devices import Device, forget, forgotten, memberships_of
from smidgen.coordinator.storage.reports import deleted_after
from smidgen.coordinator.storage.runs import Order, config_of, insert_order
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep.retention import RetainedAdapters, blobs_kept, of_finished, shelved


def lack_of(config: RunConfig) -> str:
    """Why a share cannot be taken out of a run exactly, in words; empty where it can."""
    if config.privacy is not None:
        return "has differential privacy, whose budget training again would spend twice"
    if config.asynchronous is not None:
        return "is asynchronous: its adapters are of no round"
    if config.training.scaffold:
        return "has control variates (scaffold), of which each device holds some"
    if config.labelling is not None:
        return "lets devices label texts, who hold labels that its adapters gave"
    if config.updates.secured:
        return "has secure aggregation: a second sum without it would tell what the first one hid"
    return ""


def ask_to_forget(store: Store, device: Device, now_s: float) -> list[Order]:
    """Delete what is known of a device, and have its share taken out of all runs that it was in.

    It is revoked with that. Who serves the store carries the orders out, one for each such run.

    Args:
        store: Holds both.
        device: Which; not one that was forgotten.
        now_s: Unix time.

    Raises:
        StoreError: It has part in a run of which none can be taken out; nothing has changed.
    """
    joined, concerned = memberships_of(store.database, device.device_id), list[Run]()
    for run in store.runs():
        events, config = store.events(run.run_id), config_of(run)
        has_part = without(events, {device.device_id}) != events
        if has_part and (lack := lack_of(config)):
            raise StoreError(
                f"cannot take the share of device {device.name} out of run {config.name} "
                f"({run.run_id}), which {lack}; `devices revoke` ends its part in later rounds"
            )
        if has_part or run.run_id in joined:
            concerned.append(run)
    with store.database.transaction() as connection:
        forget(connection, device.device_id, now_s)
        orders = [insert_order(connection, run, "forget", None, now_s) for run in concerned]
    store.database.scrub()
    return orders


def heirs_of(store: Store, device_id: str) -> list[Run]:
    """Runs that started from another run's adapter that holds a device's share (`create --from`).

    Directly or through others; asked before it is forgotten. Nobody can take it out of them.
    """
    tainted, heirs = set[str](), list[Run]()
    for run in store.runs():  # a run starts from those that were there before
        events = store.events(run.run_id)
        kept = without(events, {device_id})
        _, whole = history_of(run.adapter_sha256, events)
        _, clean = history_of(run.adapter_sha256, kept)
        if run.adapter_sha256 in tainted:
            heirs.append(run)
            tainted.update(whole.adapters.values())
        tainted |= {*whole.adapters.values()} - {*clean.adapters.values()}
    return heirs


def without_forgotten(
    store: Store, run: Run, state: State, seq: int, keep_rounds: int, now_s: float
) -> tuple[Folded, list[Statement]] | None:
    """What stands for a run's journal where the devices that were forgotten had no part in it.

    It goes back to the newest state before their first part whose blobs are all there, at most to
    the run's first adapter. A run that was finished stays so, a paused one too.

    Args:
        store: Holds the run.
        run: Which.
        state: As it stands.
        seq: How long its journal is.
        keep_rounds: How many of a run's newest rounds keep their adapter.
        now_s: Unix time.

    Returns:
        The event, and what goes with it: reports of the devices and of rounds that come again are
        deleted. None where they have no part in it.
    """
    gone, events = forgotten(store.database), store.events(run.run_id)
    if not gone or (kept := without(events, gone)) == events or lack_of(config_of(run)):
        return None  # where none can be taken out they had none when that was asked
    shelf = RetainedAdapters(keep_rounds)
    back, past, shelf = _newest(run, kept, shelf, store.blobs.present().keys())
    left = {name: why for name, why in state.left.items() if name not in gone}
    back = replace(back, left=left, rounds=state.rounds, is_finished=False, is_stopped=False)
    trouble = f"back to round {back.round_index}: a device was forgotten"
    back = replace(back, paused_at_s=None, trouble=trouble, forgets=state.forgets + 1)
    if state.is_finished or state.is_paused:
        ending = Finished(now_s, is_stopped=True) if state.is_finished else Paused(now_s)
        back = evolve(back, ending)
    deleted = deleted_after(run.run_id, back.round_index, back.evaluated, gone)
    return folded_from(seq, back, past, to_plain(shelf), (), ()), [deleted]


def _newest(
    run: Run, events: list[Event], shelf: RetainedAdapters, present: Set[str]
) -> tuple[State, Past, RetainedAdapters]:
    """The newest state between two steps that a run can go on from, with what is known then."""
    first = run.adapter_sha256
    state, past = State(first), Past({0: first})
    found: tuple[State, Past, RetainedAdapters] = state, past, shelf
    for event in events:
        before, state = state, evolve(state, event)
        shelf = shelved(shelf, before, event, state)
        if isinstance(event, Folded):
            past = past_of(event)
        elif (news := news_of(before, event, state)) is not NOTHING:
            past = past.plus(news)
        # What devices keep of rounds that come again is of those.
        is_whole = state.step is None and not any(state.kept.rounds.values())
        if is_whole and blobs_kept(of_finished(shelf), state) <= present:
            found = state, past, shelf
    state, past, shelf = found
    recent = tuple(one for one in shelf.recent if one[1] in present)
    return state, past, replace(shelf, recent=recent, asked=(), lower=())
