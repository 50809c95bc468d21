"""Which devices count for a run: heard of lately, joined, still wanted by it, and not outdated."""

import time

from coordinator.config import RunConfig
from coordinator.fleet.devices import Fleet
from coordinator.fleet.members import Members
from coordinator.fleet.presence import Presence
from coordinator.fleet.versions import is_too_old

AGE = 100.0  # of who is there, as devices are told: times as long as it takes to find
QUICK_S = 0.0005


class Alive:
    """Who counts for which run of one fleet.

    Args:
        presence: When each device was last heard of.
        fleet: The devices.
        members: Who is in which run.
        minimum_client: The oldest client that gets work; empty: any.
    """

    def __init__(
        self, presence: Presence, fleet: Fleet, members: Members, minimum_client: str = ""
    ) -> None:
        self._presence, self._fleet, self._members = presence, fleet, members
        self._minimum = minimum_client
        self._of_late: dict[str, tuple[set[str], float, float]] = {}  # since when, and how long

    def of(self, run_id: str, config: RunConfig, secret: str, now_s: float) -> set[str]:
        """Ids of the devices that count for a run.

        Args:
            run_id: The run's id.
            config: What it says of the devices that it wants.
            secret: What it draws them by.
            now_s: Unix time.
        """
        return {
            device_id
            for device_id in self._members.joined(run_id)
            if self._presence.is_here(device_id, now_s)
            and self._fleet.is_wanted(config, secret, device_id)
            and not self._is_outdated(device_id)
        }

    def of_late(self, run_id: str, config: RunConfig, secret: str, now_s: float) -> set[str]:
        """The same for a thousand that ask: what took long to find is told for a while."""
        known = self._of_late.get(run_id)
        if known is not None and 0 <= now_s - known[1] < known[2]:
            return known[0]
        began_s = time.perf_counter()
        found = self.of(run_id, config, secret, now_s)
        took_s = time.perf_counter() - began_s
        self._of_late[run_id] = (found, now_s, AGE * took_s if took_s > QUICK_S else 0.0)
        return found

    def _is_outdated(self, device_id: str) -> bool:
        device = self._fleet.get(device_id) if self._minimum else None
        return device is not None and is_too_old(device.facts.smidgen, self._minimum)
