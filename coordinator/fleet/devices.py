"""The fleet in memory, equal to its rows: enrolment, sign-in, memberships and versions of devices.

Commands and other servers change the same rows meanwhile; `refresh` reads the changes. Of a
finished run, only members that have not fetched its adapter yet stay in memory.

Client versions compare by their leading numbers: 0.10 is newer than 0.9.3, and 0.2.0rc1 counts as
0.2.0. A version without numbers is never too old.

The device's key is its identity: an enrolment repeated because its answer was lost is the same
device. The cost does not grow with the fleet.
"""

import logging
import re
from collections.abc import Iterable
from threading import Lock

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.rounds.selection import Facts, is_chosen
from smidgen.coordinator.storage.credentials import Token, hash_secret, spend, token_of
from smidgen.coordinator.storage.database import Connection
from smidgen.coordinator.storage.devices import (
    Device,
    Member,
    add_device,
    changed,
    device_of_key,
    free_name,
    held,
    members,
    memberships_of,
    newer,
    put_member,
    said_at_s,
    start,
)
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.watch.logs import about
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.fleet import REVOKED, Enrol, Membership, device_id_of
from smidgen.edge_client.wire.messages import PROTOCOL

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
        self._revoked, self._forgotten = set[str](), set[str]()
        self._revision = 0
        self.refresh()

    def refresh(self) -> list[Device]:
        """Take in what somebody else has changed; the devices that did."""
        with self._lock:
            found = changed(self._store.database, self._revision)
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
            LOG.info(
                "device %s was revoked; it is let in no more",
                device.name,
                extra=about(device=device.name),
            )
        self._by_id[device.device_id] = self._by_key[device.key_sha256] = device
        if device.forgotten_at_s is not None:
            self._revoked.discard(device.device_id)  # it leaves no run, for none tells of it
            self._forgotten.add(device.device_id)
        elif device.revoked_at_s is None:
            self._revoked.discard(device.device_id)
        else:
            self._revoked.add(device.device_id)
        return True

    def of_key(self, key: str) -> Device | None:
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
        """All devices but those that were forgotten."""
        with self._lock:
            return [one for one in self._by_id.values() if one.forgotten_at_s is None]

    def forgotten(self) -> frozenset[str]:
        """Ids of the devices that were forgotten."""
        with self._lock:
            return frozenset(self._forgotten)

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
    return is_chosen(config.devices, secret, device.device_id, device.tags, device.facts)


NONE = frozenset[str]()


class Members:
    """Memberships of all runs of one store; safe to use from several threads.

    Args:
        store: Holds their rows.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._of: dict[str, dict[str, Member]] = {}  # by run and device
        self._joined: dict[str, frozenset[str]] = {}  # device -> runs
        self._equal: dict[frozenset[str], frozenset[str]] = {}  # of those, one for all that have it
        self._settled: set[str] = set()
        self._revision = 0
        self._reading = Lock()  # one read at a time, or an older one might come to stand last

    def load(self, run_id: str, is_finished: bool) -> None:
        """Take in a run."""
        with self._reading:
            found = members(self._store.database, run_id)
            with self._lock:
                self._settled.discard(run_id)  # it may have been extended
                self._of[run_id] = found
                for device_id, member in found.items():
                    self._note(run_id, device_id, member)
        if is_finished:
            self.settle(run_id)

    def settle(self, run_id: str) -> None:
        """A run is finished: forget who declined, and who is at home."""
        with self._lock:
            found = self._of.get(run_id, {})
            self._of[run_id] = {key: member for key, member in found.items() if member.is_joined}
            self._settled.add(run_id)

    def refresh(self) -> None:
        with self._reading:
            for revision, run_id, device_id, member in newer(self._store.database, self._revision):
                with self._lock:
                    self._revision = revision
                    if run_id in self._of:
                        self._take(run_id, device_id, member)

    def put(self, run_id: str, device_id: str, told: Membership, at_s: float) -> None:
        """Note how a device stands to a run; on disk when this returns.

        Raises:
            Refusal: 401, it was forgotten meanwhile.
        """
        member = Member(told, at_s)
        if not put_member(self._store.database, run_id, device_id, member):
            raise Refusal(401, REVOKED)
        with self._lock:
            self._take(run_id, device_id, member)

    def _take(self, run_id: str, device_id: str, member: Member) -> None:
        here = self._of.setdefault(run_id, {})
        here[device_id] = member
        if run_id in self._settled and not member.is_joined:
            del here[device_id]
        self._note(run_id, device_id, member)

    def _note(self, run_id: str, device_id: str, member: Member) -> None:
        before = self._joined.get(device_id, NONE)
        runs = before | {run_id} if member.is_joined else before - {run_id}
        if runs:
            self._joined[device_id] = self._equal.setdefault(runs, runs)
        else:
            self._joined.pop(device_id, None)

    def drop(self, device_ids: frozenset[str]) -> None:
        """Forget some devices, as the rows have."""
        with self._lock:
            for here in self._of.values():
                for device_id in device_ids & here.keys():
                    del here[device_id]
            for device_id in device_ids:
                self._joined.pop(device_id, None)

    def get(self, run_id: str, device_id: str) -> Member | None:
        return self._of.get(run_id, {}).get(device_id)

    def said(self, run_id: str, device_id: str) -> Member | None:
        """How a device stands to a run, of a finished one as its row says it."""
        known = self.get(run_id, device_id)
        if known is None and run_id in self._settled:
            return memberships_of(self._store.database, device_id).get(run_id)
        return known

    def of(self, run_id: str) -> dict[str, Member]:
        """Everyone who answered a run's invitation; of a finished one whoever is on the way home.

        By device id.
        """
        with self._lock:
            return dict(self._of.get(run_id, {}))

    def joined(self, run_id: str) -> list[str]:
        with self._lock:
            return [key for key, member in self._of.get(run_id, {}).items() if member.is_joined]

    def joined_of(self, run_id: str, device_ids: set[str]) -> list[str]:
        """Those of some devices that are in a run, in the order of `joined`."""
        with self._lock:
            here = self._of.get(run_id, {})
            found = {key for key in device_ids if (one := here.get(key)) and one.is_joined}
            return [key for key in here if key in found] if found else []

    def ranks(self, run_id: str) -> dict[str, int]:
        """The largest ranks that devices take in a run, of those that said one; by device id."""
        known = {key: one.membership.most_rank for key, one in self.of(run_id).items()}
        return {key: rank for key, rank in known.items() if rank}

    def mask_keys(self, run_id: str) -> dict[str, bytes]:
        """The public keys that devices told a run of secure aggregation; by device id."""
        known = {key: one.membership.mask_key for key, one in self.of(run_id).items()}
        return {key: bytes.fromhex(one) for key, one in known.items() if one}

    def runs_of(self, device_id: str) -> frozenset[str]:
        with self._lock:
            return self._joined.get(device_id, NONE)


NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,7}")


def check_minimum(version: str) -> None:
    """Refuse what is not a version, as `--minimum-client` gives it.

    Raises:
        WrongInput: Says what is expected.
    """
    is_fine = version == "" or NUMBERS.fullmatch(version) is not None
    demand(is_fine, f"--minimum-client {version!r}: a version such as 0.2.0 is expected")


def is_too_old(version: str, minimum: str) -> bool:
    """Whether a version is older than the oldest that gets work; nothing is older than ``""``."""
    found = NUMBERS.match(version)
    return bool(minimum) and found is not None and _numbers(found[0]) < _numbers(minimum)


def _numbers(version: str) -> list[int]:
    """A version's numbers; zeros at its end say nothing."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


KEY_LENGTHS = range(20, 201)
NO_KEY = "a device's key is expected as `Authorization: Bearer KEY`"


def enrol(
    store: Store, message: Enrol, key: str | None, now_s: float, wall_s: float | None = None
) -> Device:
    """Let a device in by its token, or by its key where that is known.

    Args:
        store: Holds both.
        message: What the device says of itself.
        key: Its key.
        now_s: Unix time, as the coordinator goes by it.
        wall_s: The wall clock's, by which tokens expire; None: the same.

    Raises:
        Refusal: 422 another protocol; 401 no key, a token that lets nobody in, a revoked device.
    """
    if message.protocol != PROTOCOL:
        raise Refusal(
            422,
            f"protocol {message.protocol}; this coordinator speaks {PROTOCOL}: install the same "
            "version of smidgen on both sides",
        )
    if key is None or len(key) not in KEY_LENGTHS:
        raise Refusal(401, f"{NO_KEY}, of {KEY_LENGTHS[0]} to {KEY_LENGTHS[-1]} characters")
    today_s = now_s if wall_s is None else wall_s
    with store.database.reading() as connection:
        # Before it shares a commit: one that is refused would have all that share it begin anew.
        if device_of_key(connection, hash_secret(key)) is None:
            _token(connection, message, today_s)
    return store.database.share(lambda open_: _let_in(open_, message, key, now_s, today_s))


def _token(connection: Connection, message: Enrol, wall_s: float) -> Token:
    """The token that lets a device in.

    Raises:
        Refusal: 401.
    """
    token = token_of(connection, message.token)
    lack = token.lack(wall_s) if token else "is not known"
    if token is None or lack:
        raise Refusal(401, f"this enrolment token {lack}; ask the operator for one")
    return token


def _let_in(
    connection: Connection, message: Enrol, key: str, now_s: float, wall_s: float
) -> Device:
    key_sha256 = hash_secret(key)
    connection.execute(held(device_id_of(key)))  # SQLite lets nobody else write from then on
    known = device_of_key(connection, key_sha256)
    if known is not None:
        if known.revoked_at_s is not None:
            raise Refusal(401, REVOKED)
        # A life is told from the last one, and from what was said in it, by its time: also after
        # a start of the coordinator with a clock that was set back.
        last_s = max(known.started_at_s, said_at_s(connection, known.device_id))
        started_at_s = max(now_s, last_s + 0.001)
        return start(
            connection, known, message.tags, message.facts, started_at_s, now_s, message.life
        )
    token = _token(connection, message, wall_s)
    if not spend(connection, token.token_id):  # others came at the same moment
        raise Refusal(401, "this enrolment token was used up; ask the operator for one")
    device_id = device_id_of(key)
    name = free_name(connection, message.name, device_id)
    new = Device(
        device_id=device_id,
        key_sha256=key_sha256,
        name=name[0],
        own_tags=message.tags,
        tags=token.tags,
        facts=message.facts,
        token_id=token.token_id,
        enrolled_at_s=now_s,
        started_at_s=now_s,
        last_seen_s=now_s,
        revoked_at_s=None,
        life=message.life,
    )
    return add_device(connection, new, stem=name[1], number=name[2])
