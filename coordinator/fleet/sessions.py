"""Session ids: a client draws one per start and sends it with every poll.

Two live ids of one device reveal a copied state folder: the client that enrolled last is the
device, the other is refused. Requests of an ended session may arrive after those of the next, so a
refused client enrols again, at most twice; only a session that keeps being refused runs beside
another. Kept in memory: a coordinator that has just restarted, or another process of the fleet,
goes by the id in the device's row.
"""

from dataclasses import dataclass, field
from threading import Lock

from edge_client.wire.fleet import MOST_RETURNS

MOST_REFUSED = 8  # lives of a device that are remembered, the newest
AGAIN_S = 3600.0  # between two notes that a device still has two lives


@dataclass(slots=True)
class Known:
    """What is known of one device.

    Attributes:
        newest: The life that is the device; empty: none has said which it is.
        refused: Others that polled, and how often they have enrolled since.
    """

    newest: str = ""
    refused: dict[str, int] = field(default_factory=dict)


class Sessions:
    """Who of several clients is a device; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[str, Known] = {}
        self._cloned: dict[str, float] = {}  # to be written down
        self._noted_s: dict[str, float] = {}

    def began(self, device_id: str, life: str) -> None:
        """A client has enrolled; one that does not say its life changes nothing."""
        if not life:
            return
        with self._lock:
            known = self._known.setdefault(device_id, Known())
            known.newest = life
            if life in known.refused:
                known.refused[life] += 1

    def know(self, device_id: str, life: str) -> None:
        """Another process let this client in, as far as that is news."""
        if life and (known := self._known.get(device_id)) and known.newest != life:
            self.began(device_id, life)

    def is_newest(self, device_id: str, life: str, enrolled: str = "") -> bool:
        """Whether the client that polls is the device, as far as anybody knows.

        Args:
            device_id: The device.
            life: Of the client that polls; empty where it says none.
            enrolled: The life that enrolled last, by the device's row; where nothing is known of
                the device here, and there is none, the first one that polls is believed.
        """
        if not life:
            return True
        with self._lock:
            known = self._known.setdefault(device_id, Known())
            known.newest = known.newest or enrolled or life
            return known.newest == life

    def refuse(self, device_id: str, life: str, now_s: float) -> bool:
        """Note that a life was refused; whether that is news: the device was never seen cloned."""
        with self._lock:
            refused = self._known[device_id].refused
            is_cloned = refused.setdefault(life, 0) >= MOST_RETURNS
            for old in list(refused)[:-MOST_REFUSED]:
                del refused[old]
            noted_s = self._noted_s.get(device_id)
            if not is_cloned or (noted_s is not None and now_s - noted_s < AGAIN_S):
                return False
            self._noted_s[device_id] = self._cloned[device_id] = now_s
            return noted_s is None

    def cloned(self) -> dict[str, float]:
        """Devices that were found to have two lives, and when; each once an hour at most."""
        with self._lock:
            found, self._cloned = self._cloned, {}
            return found
