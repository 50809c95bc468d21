"""The fleet in memory: every enrolled device, equal to its database row up to the last second.

Commands change the same rows while a coordinator serves them; `refresh` reads the changes.
"""

import logging
from collections.abc import Iterable
from threading import Lock

from coordinator.config import RunConfig
from coordinator.rounds.eligibility import is_chosen
from coordinator.rounds.selections.selection import Facts
from coordinator.storage.keys import hash_secret
from coordinator.storage.rows.devices import Device, devices
from coordinator.storage.store import Store
from coordinator.watch.logs import about

LOG = logging.getLogger(__name__)


class Fleet:
    """All devices of one store; safe to use from several threads.

    Args:
        store: Holds their rows.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._by_id: dict[str, Device] = {}
        self._by_key: dict[str, Device] = {}
        self._revoked = set[str]()
        self._revision = 0
        self.refresh()

    def refresh(self) -> list[Device]:
        """Take in what somebody else has changed; the devices that did."""
        with self._lock:
            found = devices(self._store.database, self._revision)
            self._revision = max([self._revision, *(device.revision for device in found)])
            return [device for device in found if self._put(device)]

    def put(self, device: Device) -> None:
        with self._lock:
            self._put(device)

    def _put(self, device: Device) -> bool:
        known = self._by_id.get(device.device_id)
        if known is not None and known.revision >= device.revision:
            return False
        if known is not None and known.revoked_at_s is None and device.revoked_at_s is not None:
            told = "device %s was revoked; it is let in no more"
            LOG.info(told, device.name, extra=about(device=device.name))
        self._by_id[device.device_id] = self._by_key[device.key_sha256] = device
        if device.revoked_at_s is None:
            self._revoked.discard(device.device_id)
        else:
            self._revoked.add(device.device_id)
        return True

    def of_key(self, key: str) -> Device | None:
        """The device of a key, revoked or not."""
        return self._by_key.get(hash_secret(key))

    def get(self, device_id: str) -> Device | None:
        return self._by_id.get(device_id)

    def name_of(self, device_id: str) -> str:
        found = self._by_id.get(device_id)
        return found.name if found else device_id

    def names_of(self, device_ids: Iterable[str]) -> list[str]:
        """What people call devices, in alphabetical order."""
        return sorted(map(self.name_of, device_ids))

    def all(self) -> list[Device]:
        with self._lock:
            return list(self._by_id.values())

    def revoked(self) -> set[str]:
        """Ids of the devices that are let in no more."""
        with self._lock:
            return set(self._revoked)

    def facts(self, device_ids: Iterable[str]) -> Facts:
        """What policies of selection may know of devices."""
        known = [one for name in device_ids if (one := self._by_id.get(name)) is not None]
        memory = {one.device_id: one.facts.usable_bytes for one in known}
        return Facts(memory, {one.device_id: one.all_tags for one in known})

    def is_wanted(self, config: RunConfig, secret: str, device_id: str) -> bool:
        """Whether a run may ask a device: chosen by the run, and not revoked."""
        device = self._by_id.get(device_id)
        return device is not None and wants(config, secret, device)


def wants(config: RunConfig, secret: str, device: Device) -> bool:
    """Whether a run, by its configuration and its secret, may ask a device."""
    if device.revoked_at_s is not None:
        return False
    choice = config.devices
    tags = device.all_tags if choice.tags else {}  # for a million, making them takes a second
    return is_chosen(choice, secret, device.device_id, tags, device.facts)
