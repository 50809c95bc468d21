"""Which devices are there: those that were heard of within the last two minutes.

Kept in memory, and in the store to within half a minute, so that a coordinator that was killed asks
the same devices as one that was not; a commit per poll would wear the disk.
"""

from threading import Lock

from coordinator.storage.store import Device, Store

ALIVE_S = 120.0  # twice the longest long poll
SAVE_S = 30.0


class Presence:
    """When each device was last heard of; safe to use from several threads.

    Args:
        store: Remembers it across restarts.
        now_s: Unix time; while no coordinator ran, nobody was silent.
    """

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        self._lock = Lock()
        known = {device: at_s for device, at_s in store.devices().items() if at_s is not None}
        pause_s = now_s - max(known.values(), default=now_s)
        self._seen = {device: at_s + pause_s for device, at_s in known.items()}
        self._saved: dict[Device, float] = {}

    def saw(self, device: Device, now_s: float) -> None:
        """A device asked or answered; who was not here lately is noted in the store at once."""
        with self._lock:
            self._seen[device] = now_s
            is_due = now_s - self._saved.get(device, -SAVE_S) >= SAVE_S
            if is_due:
                self._saved[device] = now_s
        if is_due:
            self._store.saw(device, now_s)

    def alive(self, run_id: str, now_s: float) -> set[str]:
        """Ids of a run's devices that are there."""
        with self._lock:
            recent = [device for device, at_s in self._seen.items() if now_s - at_s < ALIVE_S]
        return {device.device_id for device in recent if device.run_id == run_id}
