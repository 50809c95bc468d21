"""Which devices are there: those that were heard of within the last two minutes.

Kept in memory, and in the store to within half a minute, so that a coordinator that was killed asks
the same devices as one that was not. Polls write nothing: `save` writes all that is new at once.
"""

from threading import Lock

from coordinator.storage.rows.devices import devices, saw
from coordinator.storage.store import Store

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
        found = devices(store.database)
        known = {one.device_id: one.last_seen_s for one in found if one.last_seen_s is not None}
        pause_s = now_s - max(known.values(), default=now_s)
        self._seen = {device_id: at_s + pause_s for device_id, at_s in known.items()}
        # After a clock was set back, times of another clock would count as later ones.
        self._unsaved = dict(self._seen) if pause_s < 0.0 else {}
        self._saved_at_s = now_s

    def saw(self, device_id: str, now_s: float) -> bool:
        """Note that a device asked or answered; whether it was not here lately."""
        with self._lock:
            last_s = self._seen.get(device_id, -ALIVE_S)
            self._seen[device_id] = self._unsaved[device_id] = now_s
        return now_s - last_s >= ALIVE_S

    def last_seen_s(self, device_id: str) -> float | None:
        """Unix time at which a device was last heard of; None for never."""
        return self._seen.get(device_id)

    def is_here(self, device_id: str, now_s: float) -> bool:
        last_s = self._seen.get(device_id)
        return last_s is not None and now_s - last_s < ALIVE_S

    def save(self, now_s: float, is_last: bool = False) -> None:
        """Write who was heard of, every half a minute and at the end."""
        with self._lock:
            if not is_last and now_s - self._saved_at_s < SAVE_S:
                return
            self._saved_at_s = now_s
            unsaved, self._unsaved = self._unsaved, {}
        try:
            saw(self._store.database, unsaved)
        except BaseException:  # whatever it is goes on up; what came meanwhile is newer
            with self._lock:
                self._unsaved = unsaved | self._unsaved
            raise
