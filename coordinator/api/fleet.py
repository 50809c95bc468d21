"""What a store says of runs and devices, as the operator's API does: also while it is served."""

from collections.abc import Mapping

from coordinator.fleet.devices import wants
from coordinator.fleet.presence import ALIVE_S
from coordinator.operator.told import (
    Standing,
    Told,
    answer_told,
    by_name,
    device_told,
    membership_told,
    round_told,
    run_told,
)
from coordinator.storage.figures import rows
from coordinator.storage.rows.devices import Device, devices
from coordinator.storage.rows.memberships import members, memberships_of
from coordinator.storage.rows.reports import newest_of_device
from coordinator.storage.runs import config_of
from coordinator.storage.status import state_of
from coordinator.storage.store import Run, Store, StoreError
from edge_client.wire.figures import by_round

MOST_ANSWERS = 50


def runs_told(store: Store, now_s: float) -> list[Told]:
    """Where the runs of a store stand, the newest first."""
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
        and wants(config, fleet[key])
    ]
    newest = by_round(rows(store, run.run_id, max(0, state.round_index - 1)))
    losses = [round_told(index, table)["loss"] for index, table in newest.items()]
    known = [loss for loss in losses if loss is not None]
    standing = Standing(run, config, state, joined, here)
    return run_told(standing, known[-1] if known else None)


def is_here(device: Device, now_s: float) -> bool:
    """Whether a device was heard of lately, to within half a minute."""
    seen_s = device.last_seen_s
    return seen_s is not None and now_s - seen_s < ALIVE_S


def devices_told(store: Store, now_s: float) -> list[Told]:
    """Devices of a store, by name."""
    names = _names(store)
    fleet = sorted(devices(store.database), key=lambda device: by_name(device.name))
    return [_device_told(store, device, names, now_s) for device in fleet]


def _device_told(store: Store, device: Device, names: Mapping[str, str], now_s: float) -> Told:
    found = memberships_of(store.database, device.device_id)
    runs = [membership_told(key, names[key], found[key]) for key in names if key in found]
    return device_told(device, is_here(device, now_s), runs)


def device_detail_told(store: Store, device: Device, now_s: float) -> Told:
    """A device with its newest answers."""
    names = _names(store)
    newest = newest_of_device(store.database, device.device_id, MOST_ANSWERS)
    answers = [answer_told(row, names[row["run_id"]], device.name) for row in newest]
    return _device_told(store, device, names, now_s) | {"answers": answers}


def _names(store: Store) -> dict[str, str]:
    """Names of runs, the newest first."""
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
