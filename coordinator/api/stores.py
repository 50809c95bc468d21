"""A store by its folder or place, and what it says of runs and devices, also while it is served."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from smidgen.coordinator.fleet.devices import wants
from smidgen.coordinator.fleet.presence import ALIVE_S
from smidgen.coordinator.fleet.presence import FILE as CLOCK
from smidgen.coordinator.operator.views import (
    MOST_ANSWERS,
    Standing,
    Told,
    answer_told,
    by_name,
    device_told,
    membership_told,
    misses_of,
    round_told,
    run_told,
)
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.storage.bucket import CACHE
from smidgen.coordinator.storage.database import BLOBS, DATABASE, StoreError, StorePlace, place_of
from smidgen.coordinator.storage.devices import Device, Member, devices, members, memberships_of
from smidgen.coordinator.storage.dialects.sqlite import CLAIMS, SERVE
from smidgen.coordinator.storage.journals import FILE as HEADS
from smidgen.coordinator.storage.reports import newest_of_device, newest_of_each, rows
from smidgen.coordinator.storage.runs import config_of, state_of
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.trust.folder import NAME as TLS
from smidgen.coordinator.upkeep.retention import LIMITS_FILE
from smidgen.edge_client.tables import plain
from smidgen.edge_client.wire.figures import by_round

Place: TypeAlias = str | Path
AtStore: TypeAlias = str | Path | StorePlace
# What tells a coordinator's folder; of one with a shared database some of it.
OURS = {DATABASE, BLOBS, CACHE, TLS, "uploads", SERVE, CLAIMS, HEADS, CLOCK, LIMITS_FILE}
RESTORE = "restore it from a backup, or name another --store"


def open_store(store: AtStore, may_pair: bool = False, is_left: bool = False) -> Store:
    """The store of a place that has one.

    Args:
        store: Its folder or place.
        may_pair: Whether database and blobs are paired where neither is with another.
        is_left: Whether it may be one that was moved elsewhere.

    Raises:
        StoreError: It has none, or one that another smidgen wrote.
    """
    place = place_of(store)
    if not place.is_shared and not place.file.is_file():
        if _holds_blobs(place.folder):
            raise StoreError(f"store {place} holds adapters, but no {DATABASE}; {RESTORE}")
        raise StoreError(
            f"no store at {place.folder}; make one with `create`, or name it with --store"
        )
    return Store(place, may_pair=may_pair, is_new=False, is_left=is_left)


def new_store(store: AtStore) -> Store:
    """The store of a place, made where there is none.

    Raises:
        StoreError: Its folder is somebody's own, or the store another smidgen's.
    """
    place = place_of(store)
    try:
        found = {path.name for path in place.folder.iterdir()} if place.folder.is_dir() else set()
    except OSError:
        found = set()  # whoever opens it says why
    if found and not found & OURS:
        raise StoreError(
            f"--store {place.folder} holds other things, such as {plain(sorted(found)[0])[:80]}; "
            "give a new or an empty folder, or a coordinator's"
        )
    return Store(place)


def holds_store(store: AtStore) -> bool:
    """Whether a place holds a store, or what is left of one; of a server that shall say itself."""
    place = place_of(store)
    return place.is_shared or place.file.is_file() or _holds_blobs(place.folder)


def _holds_blobs(folder: Path) -> bool:
    try:
        return any((folder / BLOBS).iterdir())
    except OSError:
        return False


def runs_told(store: Store, now_s: float) -> list[Told]:
    fleet = {device.device_id: device for device in devices(store.database)}
    return [_run_told(store, run, fleet, now_s) for run in store.runs()[::-1]]


def _run_told(store: Store, run: Run, fleet: Mapping[str, Device], now_s: float) -> Told:
    config, state = config_of(run), state_of(store, run)
    told = members(store.database, run.run_id)
    joined = [key for key, one in told.items() if one.membership.state != "declined"]
    here = [
        key
        for key in joined
        if told[key].is_joined
        and key not in state.left
        and is_here(fleet[key], now_s)
        and wants(config, run.secret, fleet[key])
    ]
    first = max(0, min(state.round_index - 1, state.evaluated))
    newest = by_round(rows(store, run.run_id, first))
    rounds = [round_told(index, table, config.task) for index, table in newest.items()]
    return run_told(Standing(run, config, state, len(joined), here), rounds)


def is_here(device: Device, now_s: float) -> bool:
    seen_s = device.last_seen_s
    return seen_s is not None and now_s - seen_s < ALIVE_S


def devices_told(store: Store, now_s: float) -> list[Told]:
    names, runs = _names(store), _Runs(store)
    fleet = sorted(devices(store.database), key=lambda device: by_name(device.name))
    return [_device_told(store, device, names, runs, now_s) for device in fleet]


def _device_told(
    store: Store, device: Device, names: Mapping[str, str], runs: "_Runs", now_s: float
) -> Told:
    key, found = device.device_id, memberships_of(store.database, device.device_id)
    told = [
        membership_told(run_id, names[run_id], member, runs.misses(run_id, key, member))
        | {"is_slow": runs.is_slow(run_id, key, member)}
        for run_id in names
        if (member := found.get(run_id)) is not None
    ]
    return device_told(device, is_here(device, now_s), told, now_s)


class _Runs:
    """Who misses steps of which run; a journal is read where a device may miss one, and once."""

    def __init__(self, store: Store) -> None:
        self._store, self._runs = store, {run.run_id: run for run in store.runs()}
        self._states: dict[str, State] = {}
        self._late: dict[str, set[str]] = {}

    def _state(self, run_id: str) -> State:
        if run_id not in self._states:
            self._states[run_id] = state_of(self._store, self._runs[run_id])
        return self._states[run_id]

    def misses(self, run_id: str, device_id: str, member: Member) -> int:
        return misses_of(self._state(run_id), device_id) if member.is_joined else 0

    def is_slow(self, run_id: str, device_id: str, member: Member) -> bool:
        """Whether a device that misses steps does answer, but too late."""
        if not self.misses(run_id, device_id, member):
            return False
        if run_id not in self._late:
            silent = self._state(run_id).silences.keys()
            newest = newest_of_each(self._store.database, run_id, silent)
            self._late[run_id] = {key for key, row in newest.items() if row["is_late"]}
        return device_id in self._late[run_id]


def device_detail_told(store: Store, device: Device, now_s: float) -> Told:
    names = _names(store)
    newest = newest_of_device(store.database, device.device_id, MOST_ANSWERS)
    answers = [answer_told(row, names[row["run_id"]], device.name) for row in newest]
    return _device_told(store, device, names, _Runs(store), now_s) | {"answers": answers}


def _names(store: Store) -> dict[str, str]:
    return {run.run_id: config_of(run).name for run in store.runs()[::-1]}


def find_device(store: Store, named: str) -> Device:
    """The device of an id or name.

    Raises:
        StoreError: There is none.
    """
    fleet = devices(store.database)
    for device in fleet:
        if named in (device.device_id, device.name):
            return device
    known = ", ".join(device.name for device in fleet[:5])
    more = f" and {len(fleet) - 5} more" if len(fleet) > 5 else ""
    hint = f"it has {known}{more}" if fleet else "it has none"
    raise StoreError(f"no device {named[:80]!r} in the store; {hint}")
