"""The coordinator's service to devices, and the tick by which rounds proceed.

Devices enrol, hear of runs, ask for work, and answer; `tick` closes and opens steps. An answer's
blob and journal entry are on disk before it is acknowledged, so a kill at any point loses nothing
that a device believes safe. Thread-safe. Every process of a fleet serves devices; the leader also
carries rounds on.
"""

import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock

from smidgen.coordinator.fleet.devices import NO_KEY, Fleet, Members, enrol, is_too_old, wants
from smidgen.coordinator.fleet.presence import Alive, Clock, Presence, Sessions
from smidgen.coordinator.plugins import LIMIT_S, LetGo, Limit
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Event,
    Extended,
    Finished,
    Folded,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
    Unpaused,
)
from smidgen.coordinator.rounds.extensions import calling_by
from smidgen.coordinator.rounds.machine import waits
from smidgen.coordinator.rounds.scheduling.asking import asked_at_s
from smidgen.coordinator.serving.answers import (
    AnswerIntake,
    answer_invitation,
    dismiss_revoked,
    due_invitation,
)
from smidgen.coordinator.serving.device_messages import over_of, terms_of, waiting_of, work_of
from smidgen.coordinator.serving.executor import carry_out, proceed
from smidgen.coordinator.serving.http.connection_limits import TokenBuckets
from smidgen.coordinator.serving.ledger import Ledger, Live
from smidgen.coordinator.serving.log import Clocks, Lacks, Troubles, run_text
from smidgen.coordinator.serving.packs import LatePacks, Packs
from smidgen.coordinator.serving.peer_servers import Neighbours
from smidgen.coordinator.storage.blobs import BlobDamaged
from smidgen.coordinator.storage.devices import Device, note_cloned, who_joined
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import DatabaseFile
from smidgen.coordinator.upkeep.retention import Caretaker, DiskLimits, Usage
from smidgen.coordinator.watch.logs import about
from smidgen.edge_client.wire.fleet import (
    CLONED,
    REVOKED,
    Enrol,
    Enrolled,
    Membership,
    Outdated,
    PackFile,
)
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Over, Receipt, Waiting, Work

RETURNS_AT_ONCE = 4  # of a device to a run that it had left
RETURN_EVERY_S = 60  # and then one
FAREWELL_S = 60.0  # twice the longest pause of a client that waits for the coordinator
DEFAULTS = DiskLimits()
LOG = logging.getLogger(__name__)


class Service:
    """All runs and devices of one store.

    Args:
        store: Owned by the caller, who closes it after the last use.
        now_s: Unix time, as the wall clock says it; what this process goes by goes on from there.
        limits: What the store may hold.
        usage: What `shutil.disk_usage` says.
        minimum_client: The oldest client that gets work, such as `0.2.0`; empty: any.
        packs: What runs train on; None: devices are told of packs and get no file from here.
        plugin_limit_s: Seconds that a call of somebody else's code may take; 0: any time.

    Attributes:
        store: Where all of it lies.
        clock: The time that it goes by.
        fleet: The devices.
        lives: Which client is a device.
        members: Who is in which run.
        presence: When each device was last heard of.
        answers: Takes what devices answer.
        caretaker: Keeps the store small, and knows when its disk is full.
        limit: How long somebody else's code may take.
        lead: Whether this process carries rounds on.
        neighbours: Read on what other processes have written.
    """

    def __init__(
        self,
        store: Store,
        now_s: float,
        limits: DiskLimits = DEFAULTS,
        usage: Callable[[Path], Usage] = shutil.disk_usage,
        minimum_client: str = "",
        packs: Packs | None = None,
        plugin_limit_s: float = LIMIT_S,
    ) -> None:
        self.store, self._packs, self._minimum = store, packs or Packs(), minimum_client
        self.limit, self.lead = Limit(plugin_limit_s, LOG.warning), store.database.lead()
        self._led = False
        self._late, self.clock = LatePacks(self._packs, now_s), Clock(now_s)
        self._ledger = Ledger(store, now_s, limits.keep_rounds, self.clock)
        self._file = DatabaseFile(store.database)
        self.caretaker = Caretaker(store, self._ledger.kept, limits, usage)
        self.fleet = Fleet(store)
        self.lives = Sessions()
        self.members = Members(store)
        for live in self._ledger.all():
            self.members.load(live.run.run_id, live.state.is_finished)
        self.presence = Presence(store, now_s)
        self.neighbours = Neighbours(
            store, self._ledger, self.fleet, self.members, self.presence, self.lives
        )
        self._alive = Alive(self.presence, self.fleet, self.members, minimum_client)
        self.answers = AnswerIntake(store, self._ledger, self.fleet, self.members)
        self._returns = TokenBuckets(RETURNS_AT_ONCE, 1 / RETURN_EVERY_S)
        self._ticking, self._summing = Lock(), Lock()
        self._overs: dict[str, tuple[int, Over]] = {}  # and how long the journal was then
        self._troubles = Troubles()  # of ticks
        self._lacks = Lacks()
        self._clocks = Clocks(store.database, self.clock.now_s)
        self._over_since_s: float | None = None

    def now_s(self) -> float:
        """Unix time that does not jump while this process lives."""
        return self.clock.now_s()

    # Devices

    def enrol(
        self, message: Enrol, key: str | None, now_s: float, wall_s: float | None = None
    ) -> Enrolled:
        """Let a device into the fleet, or greet one that is back; see `fleet.devices`.

        Args:
            message: What it says of itself.
            key: Its key.
            now_s: Unix time.
            wall_s: The wall clock's, by which its token may have expired; None: the same.

        Raises:
            Refusal: 422 another protocol; 401 no key, or one that is not let in.
        """
        is_new = key is None or self.fleet.of_key(key) is None
        device = enrol(self.store, message, key, now_s, wall_s)
        self.fleet.put(device)
        self.presence.saw(device.device_id, now_s)
        self.lives.began(device.device_id, message.life)
        how = "enrolled" if is_new else "started again"
        LOG.info("device %s %s", device.name, how, extra=about(device=device.name))
        return Enrolled(PROTOCOL, device.device_id, device.name)

    def device_of(self, key: str | None) -> Device:
        """The device of a key.

        Raises:
            Refusal: 401.
        """
        device = self.fleet.of_key(key) if key else None
        if device is None:
            raise Refusal(401, "its key is not known here" if key else NO_KEY)
        if device.revoked_at_s is not None:
            raise Refusal(401, REVOKED)
        return device

    def check_life(self, device: Device, life: str, now_s: float) -> None:
        """Refuse a client when another one has started with its key since.

        Raises:
            Refusal: 409.
        """
        if self.lives.is_newest(device.device_id, life, device.life) or self.neighbours.has_let_in(
            device, life
        ):
            return
        if self.lives.refuse(device.device_id, life, now_s):
            LOG.warning(
                "device %s has two lives: two clients run with copies of one state folder",
                device.name,
                extra=about(device=device.name),
            )
        raise Refusal(409, CLONED)

    def saw(self, device: Device, now_s: float) -> bool:
        """Note that a device asked or answered; whether that may let rounds proceed."""
        return self.presence.saw(device.device_id, now_s)

    def next(self, device: Device, now_s: float) -> Next:
        """What a device does next: an invitation, then work, then runs that are over.

        Work is the same until it is answered, of the step that has been open the longest.
        """
        given = self._next(device, now_s)
        if self.neighbours.may_be and given.waiting is None:  # it may have answered elsewhere
            self.neighbours.catch_up()
            given = self._next(self.fleet.get(device.device_id) or device, now_s)
        return given

    def _next(self, device: Device, now_s: float) -> Next:
        if is_too_old(device.facts.smidgen, self._minimum):
            return Next(outdated=Outdated(self._minimum))
        if live := due_invitation(self._ledger, self.members, device, self._late):
            pack = self._late.told(live.run, live.config, device.device_id)
            return Next(terms=terms_of(live, pack))
        runs = [self.run(run_id) for run_id in self.members.runs_of(device.device_id)]
        work, damaged = self._work(runs, device.device_id)
        if work is not None:
            return Next(work=work)
        for live in sorted(runs, key=_age):
            if live.state.is_finished:
                return Next(over=self._over(live))
        sound = [live for live in runs if live.run.run_id not in damaged]
        if damaged and not sound:
            raise next(iter(damaged.values()))
        return Next(waiting=self._waiting(sound, device.device_id, now_s))

    def is_at_hand(self, device: Device) -> bool:
        """Whether `next` is answered from memory: no sum of a finished run is still to be made."""
        return not self.neighbours.may_be and all(
            run_id in self._overs or not self.run(run_id).state.is_finished
            for run_id in self.members.runs_of(device.device_id)
        )

    def _work(self, runs: list[Live], device_id: str) -> tuple[Work | None, dict[str, BlobDamaged]]:
        """What a device is to do, and by run what keeps other work from being told."""
        found = []
        damaged: dict[str, BlobDamaged] = {}
        for live in runs:
            if (work_id := live.open_work(device_id)) is not None:
                since_s, opened = (
                    asked_at_s(live.state, work_id),
                    self._ledger.opened(live, work_id),
                )
                found.append((since_s, _age(live), work_id, live, opened))
        for _, _, work_id, live, opened in sorted(found, key=lambda one: one[:2]):
            try:
                return work_of(live, opened, work_id, self.adapter_bytes, device_id), damaged
            except BlobDamaged as error:
                damaged[live.run.run_id] = error
        return None, damaged

    def _waiting(self, runs: list[Live], device_id: str, now_s: float) -> Waiting:
        here = [one for one in runs if device_id not in one.state.left]
        if not here:
            return Waiting("idle")
        live = min(here, key=lambda one: (one.state.is_paused, one.state.step is None, _age(one)))
        asks = live.run.run_id, live.config, live.run.secret
        alive, is_full = lambda: self._alive.of_late(*asks, now_s), self.caretaker.is_full
        return waiting_of(live, alive, self.fleet.names_of, now_s, is_full)

    def _over(self, live: Live) -> Over:
        run_id = live.run.run_id
        with self._summing:
            seq, over = self._overs.get(run_id, (-1, None))
            if over is None or seq != live.seq:
                over = over_of(live, self._number_in(live), live.past.scores)
                self._overs[run_id] = live.seq, over
            return over

    def _number_in(self, live: Live) -> int:
        """Devices that joined a run, at home or gone since then too."""
        joined = who_joined(self.store.database, live.run.run_id)
        return len(joined | live.state.left.keys())

    def membership(self, device: Device, run_id: str, told: Membership, now_s: float) -> Receipt:
        """Take in how a device stands to a run.

        Raises:
            Refusal: 404 no such run, 403 one that does not ask this device, 429 one that the device
                leaves and comes back to all the time, which a journal would have to hold.
        """
        if self.neighbours.may_be:
            self.neighbours.catch_up()
        live, who = self.run(run_id), f"{run_id} {device.device_id}"
        is_back = told.state == "joined" and device.device_id in live.state.left
        if is_back and (again_s := self._returns.take(who, time.monotonic())):
            raise Refusal(429, "left and back again too often of late; try again", again_s)
        self._late.answered(live.run, live.config, device.device_id)
        return answer_invitation(self._ledger, self.members, live, device, told, now_s)

    # Adapters

    def is_adapter_for(self, device: Device, name: str) -> bool:
        """Whether a run that a device is in keeps this adapter."""
        is_kept = self._ledger.is_adapter(name, self.members.runs_of(device.device_id))
        if not is_kept and self.neighbours.may_be:
            self.neighbours.catch_up()
            is_kept = self._ledger.is_adapter(name, self.members.runs_of(device.device_id))
        return is_kept

    def adapter_path(self, name: str) -> Path:
        return self.store.blobs.path(name)

    def adapter_bytes(self, name: str) -> int:
        return self.store.blobs.size(name)

    def pack_file(self, device: Device, base_id: str, name: str) -> tuple[Path, PackFile] | None:
        """A file of a pack, if a run that goes on and wants this device trains on it."""
        for live in self._ledger.open():
            is_asked = live.run.base_id == base_id and wants(live.config, live.run.secret, device)
            if is_asked and (found := self._packs.path(live.run, live.config, name)):
                return found
        return None

    # Runs

    def run(self, run_id: str) -> Live:
        """A run as it stands.

        Raises:
            Refusal: 404.
        """
        live = self._ledger.run(run_id)
        if live is None:
            raise Refusal(404, f"no run {run_id[:64]!r}")
        return live

    def runs(self) -> list[Live]:
        return self._ledger.all()

    def lines(self) -> list[str]:
        return [run_text(live, self._number_in(live)) for live in self.runs()]

    def alive(self, run_id: str, now_s: float) -> set[str]:
        """Devices that count for a run: heard of lately, joined, and still wanted by it."""
        live = self.run(run_id)
        return self._alive.of(run_id, live.config, live.run.secret, now_s)

    def is_over(self, now_s: float) -> bool:
        """Whether all runs are finished and every device that is there has its adapters."""
        runs = self.runs()
        if not runs or not all(live.state.is_finished for live in runs):
            self._over_since_s = None
            return False
        self._over_since_s = self._over_since_s or now_s
        waited_for = {
            device_id
            for live in runs
            for device_id in self.alive(live.run.run_id, now_s) - live.state.left.keys()
        }
        return not waited_for or now_s - self._over_since_s > FAREWELL_S

    def tick(self, now_s: float) -> set[str]:
        """Let every run proceed as far as it can; one that cannot holds up no other.

        Returns:
            Ids of devices to wake: wanted by a new run, asked for new work, in a run that is
            finished, or changed by an operator.
        """
        woken: set[str] = set()
        with self._ticking:
            with self._troubles.trying("the database"):
                self._file.look()
            with self._troubles.trying("the store"):
                if self.neighbours.may_be:
                    self.store.check_here()
                    self._clocks.look()
                if self.caretaker.look() and self.lead.is_here:
                    self.caretaker.tidy()  # what comes next needs room
            with self._troubles.trying("the fleet"):
                for device_id, at_s in self.lives.cloned().items():
                    note_cloned(self.store.database, device_id, at_s)
                self.neighbours.read_on()
                self.members.drop(self.fleet.forgotten())
                woken |= self.neighbours.concerned()
                for live, event in self._ledger.heard():
                    woken |= self.neighbours.asked(live, event)
                    if isinstance(event, Finished | Extended | RolledBack | Paused | Unpaused):
                        woken |= self._ordered(live.run.run_id, event)
            if self.lead.is_here:
                self._carry_on(now_s, woken)
            self._led = self._led and self.lead.is_here
            with self._troubles.trying("who is there"):
                self.presence.save(now_s)
        return woken

    def _carry_on(self, now_s: float, woken: set[str]) -> None:
        """What one process of a fleet does for all."""
        if self.neighbours.may_be and not self._led:
            LOG.info("this process carries the rounds on now")
            with self._troubles.trying("taking the lead"):
                self._ledger.resume(now_s)
                self._led = self.caretaker.is_due = True
            if not self._led:  # deadlines have not begun again: nothing may be closed by them
                return
        with self._troubles.trying("revoked devices"):
            dismiss_revoked(self._ledger, self.members, self.fleet, now_s)
        with self._troubles.trying("what operators ordered"):
            for live, event in carry_out(self.store, self._ledger, now_s):
                woken |= self._ordered(live.run.run_id, event)
            self.neighbours.devices()  # whom an order took out is asked no more
            self.members.drop(self.fleet.forgotten())
        for live in self._ledger.open():
            by_limit = calling_by(self.limit.call)
            with self._troubles.trying(live.config.name), suppress(LetGo), by_limit:
                self._proceed(live.run.run_id, now_s, woken)
        with self._troubles.trying("what is no longer needed"):
            self.caretaker.tidy()

    def _ordered(self, run_id: str, event: Event) -> set[str]:
        """What follows from an order that was carried out; the devices to wake."""
        woken = set(self.members.joined(run_id))
        if isinstance(event, Finished):
            self.members.settle(run_id)
            self.caretaker.is_due = True  # its open step's updates
        if isinstance(event, RolledBack | Folded):
            self.caretaker.is_due = True  # what was given up
        if isinstance(event, Extended):  # who declined, and who is at home, counts again
            self.members.load(run_id, is_finished=False)
            woken |= self.members.of(run_id).keys()
        return woken

    def stop(self, now_s: float) -> None:
        """Note who is there, for the next start; after the last tick."""
        self.lead.end()
        self.presence.save(now_s, is_last=True)

    def _proceed(self, run_id: str, now_s: float, woken: set[str]) -> None:
        live, is_full = self.run(run_id), self.caretaker.is_full
        if waits(live.config, live.state, now_s):
            if not is_full:
                self._lacks.forget(live)
            return
        alive, names_of = self.alive(run_id, now_s), self.fleet.names_of
        known = self.fleet.facts(alive) if live.config.learning.goes_by_facts else None
        given = (run_id, alive, names_of, now_s, is_full, known, self.members.ranks(run_id))
        keys = partial(self.members.mask_keys, run_id)
        while event := proceed(self.store, self._ledger, *given, keys):
            if isinstance(event, StepOpened | AlsoAsked):
                woken |= {device_id for _, device_id in event.members}
            if isinstance(event, AlsoAsked):
                continue
            if not isinstance(event, StepOpened) or event.attempt > 1:
                self.caretaker.is_due = True  # a step is over, with its updates
            if isinstance(event, StepClosed):
                with self._troubles.trying("making a journal short"):
                    self._ledger.shorten(run_id)
            if isinstance(event, Finished):
                self.members.settle(run_id)
                woken |= alive
        if not is_full:
            self._lacks.say(self.run(run_id), alive, names_of, now_s)


def _age(live: Live) -> tuple[float, str]:
    return live.run.created_at_s, live.run.run_id
