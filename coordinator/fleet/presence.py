"""Presence: which devices were heard of lately, by what clock, which count, and their session ids.

A device counts for a run if it is present, has joined, is still eligible and is not outdated.

Presence is kept in memory, and saved at most half a minute late, so that a coordinator that was
killed asks the same devices as one that was not. Polls write nothing; `save` writes all changes at
once.

Two live ids of one device reveal a copied state folder: the client that enrolled last is the
device, the other is refused. Requests of an ended session may arrive after those of the next, so a
refused client enrols again, at most twice; only a session that keeps being refused runs beside
another. Kept in memory: a coordinator that has just restarted, or another process of the fleet,
goes by the id in the device's row.

`Clock` is Unix time that does not jump while the coordinator's process lives. It starts at the wall
clock's time and advances with the monotonic clock, so setting the wall clock moves no deadline and
makes no device look absent. What other machines must agree on, such as certificates and token
expiry, uses the wall clock itself. Other processes that read the store find this clock in
`clock.json` beside it.
"""

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import msgspec

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.fleet.devices import Fleet, Members, is_too_old
from smidgen.coordinator.storage.devices import saw, seen_since
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.files import from_json, write_atomically
from smidgen.edge_client.wire.fleet import MOST_RETURNS

FILE = "clock.json"


class Clock:
    """One per process.

    Args:
        now_s: Unix time, as the wall clock says it now.
    """

    def __init__(self, now_s: float) -> None:
        self._ahead_s = now_s - time.monotonic()

    def now_s(self) -> float:
        """Unix time at the start, and what has passed since."""
        return self._ahead_s + time.monotonic()

    def note(self, folder: Path) -> None:
        """Write down beside a store which time it goes by; a full disk may not take it."""
        told = {"ahead_s": self._ahead_s, "boot": _boot()}
        with suppress(OSError):
            write_atomically(folder / FILE, json.dumps(told).encode(), mode=0o600)


class _Noted(msgspec.Struct):
    ahead_s: float
    boot: str


def now_of(folder: Path) -> float:
    """The time that a store was last served by; the wall clock's where nobody knows."""
    try:
        noted = from_json((folder / FILE).read_bytes(), _Noted)
    except (OSError, msgspec.MsgspecError):
        return time.time()
    is_same = noted.boot != "" and noted.boot == _boot()
    return noted.ahead_s + time.monotonic() if is_same else time.time()


def _boot() -> str:
    try:
        # The monotonic clock counts from the boot
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # another system
        return ""


ALIVE_S = 120.0  # twice the longest long poll
SAVE_S = 30.0
SHARE_S = 2.0  # where other processes go by it, too
CLOCKS_S = 10.0  # that their clocks may differ by
REST = 9.0  # after reading whom others have heard, times as long as it took
QUICK_S, LONGEST_REST_S = 0.05, 30.0


class Presence:
    """When each device was last heard of; safe to use from several threads.

    Args:
        store: Remembers it across restarts.
        now_s: Unix time; while no coordinator ran, nobody was silent.
    """

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        self._lock = Lock()
        known = seen_since(store.database, -math.inf)
        pause_s = now_s - max(known.values(), default=now_s)
        self._began_s, self._pause_s = now_s, max(0.0, pause_s)
        self._seen = {device_id: at_s + pause_s for device_id, at_s in known.items()}
        # After a clock was set back, times of another clock would count as later ones.
        self._unsaved = dict(self._seen) if pause_s < 0.0 else {}
        self._saved_at_s, self._read_s = now_s, max(known.values(), default=0.0)
        self._is_shared, self._rests_until_s = store.place.is_shared, 0.0

    def refresh(self) -> None:
        """Take in whom other processes have heard; of a crowd not all the time."""
        began_s = time.monotonic()
        if began_s < self._rests_until_s:
            return
        found = seen_since(self._store.database, self._read_s - CLOCKS_S)
        with self._lock:
            self._read_s = max([self._read_s, *found.values()])
            for device_id, at_s in found.items():
                self._seen[device_id] = max(at_s, self._seen.get(device_id, at_s))
        ended_s = time.monotonic()
        self._rests_until_s = ended_s + rest_after(ended_s - began_s)

    def saw(self, device_id: str, now_s: float) -> bool:
        """Note that a device asked or answered; whether it was not here lately."""
        with self._lock:
            last_s = self._seen.get(device_id, -ALIVE_S)
            self._seen[device_id] = self._unsaved[device_id] = now_s
            is_news = now_s - last_s >= ALIVE_S
            if is_news and self._is_shared:
                self._saved_at_s = -SAVE_S
        return is_news

    def last_seen_s(self, device_id: str) -> float | None:
        """Unix time at which a device was last heard of; None for never.

        The true one, of before a pause of the coordinator too, which counts for nothing else.
        """
        at_s = self._seen.get(device_id)
        return at_s if at_s is None or at_s > self._began_s else at_s - self._pause_s

    def is_here(self, device_id: str, now_s: float) -> bool:
        last_s = self._seen.get(device_id)
        return last_s is not None and now_s - last_s < ALIVE_S

    def save(self, now_s: float, is_last: bool = False) -> None:
        """Write who was heard of, every half a minute and at the end."""
        with self._lock:
            every_s = SHARE_S if self._is_shared else SAVE_S
            if not is_last and now_s - self._saved_at_s < every_s:
                return
            self._saved_at_s = now_s
            unsaved, self._unsaved = self._unsaved, {}
        try:
            saw(self._store.database, unsaved)
        except BaseException:  # whatever it is goes on up; what came meanwhile is newer
            with self._lock:
                self._unsaved = unsaved | self._unsaved
            raise


def rest_after(took_s: float) -> float:
    """Seconds without a look at whom others have heard, after one that took so long.

    A process that reads a million would do nothing else; nobody is gone before `ALIVE_S`.
    """
    return min(REST * took_s, LONGEST_REST_S) if took_s > QUICK_S else 0.0


AGE = 100.0  # of who is there, as devices are told: times as long as it takes to find
SWIFT_S = 0.0005


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
        self._of_late[run_id] = (found, now_s, AGE * took_s if took_s > SWIFT_S else 0.0)
        return found

    def _is_outdated(self, device_id: str) -> bool:
        device = self._fleet.get(device_id) if self._minimum else None
        return device is not None and is_too_old(device.facts.smidgen, self._minimum)


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
