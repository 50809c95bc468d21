"""Changes by other processes: commands, and other servers of the same fleet.

A process holds the fleet in memory and reads what is new at each tick. It also looks before it
refuses a key it does not know, work it never handed out, or an answer that a device may have given
to another process.
"""

from contextlib import suppress
from threading import Lock

from smidgen.coordinator.fleet.devices import Fleet, Members, wants
from smidgen.coordinator.fleet.presence import Presence, Sessions
from smidgen.coordinator.rounds.events import AlsoAsked, Event, StepOpened
from smidgen.coordinator.serving.ledger import Ledger, Live
from smidgen.coordinator.storage.devices import Device
from smidgen.coordinator.storage.store import Store


class Neighbours:
    """Reads on what others write; safe to use from several threads.

    Args:
        store: Where all write.
        ledger: Its runs.
        fleet: Its devices.
        members: Who is in which run.
        presence: When each device was last heard of.
        lives: Which client is a device.

    Attributes:
        may_be: Whether other processes may serve the same fleet.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        fleet: Fleet,
        members: Members,
        presence: Presence,
        lives: Sessions,
    ) -> None:
        self._store, self._ledger, self._fleet = store, ledger, fleet
        self._members, self._presence, self._lives = members, presence, lives
        self.may_be = store.place.is_shared
        self._concerned = set[str]()
        self._lock, self._new = Lock(), list[Live]()  # runs whose members are still to be read

    def read_on(self) -> None:
        """Take in all that is new; once a tick."""
        if self.may_be:
            self._presence.refresh()
        self.catch_up()

    def catch_up(self) -> None:
        """Take in what was asked, answered and joined elsewhere."""
        self.devices()
        with self._lock:
            self._new += self._ledger.load_new_runs()
            while self._new:  # one whose members cannot be read now is read at the next look
                live = self._new[0]
                self._members.load(live.run.run_id, live.state.is_finished)
                asks = live.config, live.run.secret
                self._concerned |= {one.device_id for one in self._fleet.all() if wants(*asks, one)}
                del self._new[0]
        if self.may_be:
            self._members.refresh()
            self._ledger.follow()

    def devices(self) -> None:
        changed = self._fleet.refresh()
        for device in changed if self.may_be else ():
            self._lives.know(device.device_id, device.life)
        self._concerned |= {device.device_id for device in changed}

    def has_let_in(self, device: Device, life: str) -> bool:
        """Whether a client is the device by the word of another process."""
        if not self.may_be:
            return False
        self.devices()
        known = self._fleet.get(device.device_id)
        if known is None or known.life != life:
            return False
        self._lives.know(device.device_id, life)
        return True

    def concerned(self) -> set[str]:
        """Devices that a change or a new run concerns, since the last call."""
        found, self._concerned = self._concerned, set()
        return found

    def asked(self, live: Live, event: Event) -> set[str]:
        """Devices that an event of another process asks; the adapter that they need is fetched."""
        if not isinstance(event, StepOpened | AlsoAsked):
            return set()
        names = {live.state.adapter_sha256}
        if isinstance(event, StepOpened):
            names = {event.adapter_sha256, *(name for _, name in event.lower)}
        with suppress(OSError):  # who asks for it hears so
            for name in names:
                self._store.blobs.path(name)
        return {device_id for _, device_id in event.members}
