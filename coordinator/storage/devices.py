"""Rows of devices (name, tags, facts) and of their memberships in runs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from sys import intern
from typing import Any

import msgspec
import sqlalchemy as sql

from smidgen.coordinator.storage.database import Database, Statement
from smidgen.coordinator.storage.schema import DEVICES, MEMBERSHIPS, REPORTS
from smidgen.edge_client.wire.fleet import DeviceFacts, Membership

NUMBERED = re.compile(r"(.+)-([2-9]|[1-9][0-9]{1,5})")  # a name that says its number itself
KNOWN = DEVICES.c.forgotten_at_s.is_(None)
UNKNOWN = {"machine": "", "cores": 0, "memory_bytes": 0, "python": "", "smidgen": ""}


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this coordinator.

    Attributes:
        device_id: Its identity; seeds and cohorts hang on it.
        key_sha256: Hash of its key.
        name: What people call it; no other device of the coordinator has it.
        own_tags: What its owner says of it.
        tags: What the coordinator's operator says of it.
        facts: What it last said of itself.
        token_id: The token it came with; None for one of an old store.
        enrolled_at_s: Unix time at which it first came.
        started_at_s: Unix time of its client's last start.
        last_seen_s: Unix time, half a minute old at most where a coordinator runs.
        revoked_at_s: Unix time from which on it is not let in; None for a device that is.
        revision: Grows with each change of any device.
        cloned_at_s: Unix time at which two clients were last found to run with its key.
        life: Of the client that enrolled last; empty where it said none.
        forgotten_at_s: Unix time since which nothing else is known of it; it is revoked then.
    """

    device_id: str
    key_sha256: str = field(repr=False)
    name: str
    own_tags: dict[str, str]
    tags: dict[str, str]
    facts: DeviceFacts
    token_id: str | None
    enrolled_at_s: float
    started_at_s: float
    last_seen_s: float | None
    revoked_at_s: float | None
    revision: int = 0
    cloned_at_s: float | None = None
    life: str = ""
    forgotten_at_s: float | None = None

    @property
    def all_tags(self) -> dict[str, str]:
        """Its owner's tags, and the operator's, which win."""
        return self.own_tags | self.tags


def devices(database: Database) -> list[Device]:
    """Devices by name, but for those that were forgotten."""
    return [one for one in changed(database, 0) if one.forgotten_at_s is None]


def changed(database: Database, after: int) -> list[Device]:
    """Devices by name whose row has changed after a revision.

    Sorted here: asked for an order, SQLite walks through all devices by name to find the few.
    """
    rows = database.each(sql.select(DEVICES).where(DEVICES.c.revision > after))
    found = [(row["stem"], row["number"], _device(row)) for row in rows]
    return [device for _, _, device in sorted(found, key=itemgetter(0, 1))]


def device_of_key(connection: sql.Connection, key_sha256: str) -> Device | None:
    return _found(connection, DEVICES.c.key_sha256 == key_sha256)


def free_name(connection: sql.Connection, wanted: str, device_id: str) -> tuple[str, str, int]:
    """The wanted name, or where a device has it the next number of its kind: `pi`, `pi-2`, `pi-3`.

    Two queries by index, however many devices share the name.

    Returns:
        The name, its stem and its number.
    """
    stem, number = _parts(wanted)
    if not _is_taken(connection, wanted):
        return wanted, stem, number
    last = sql.select(sql.func.max(DEVICES.c.number)).where(DEVICES.c.stem == stem)
    number = max(1, connection.scalar(last) or 0) + 1
    name = f"{stem}-{number}"
    if _is_taken(connection, name):  # only where somebody chose a name of seven digits
        name = f"{wanted}-{device_id}"
        return name, name, 1
    return name, stem, number


def _is_taken(connection: sql.Connection, name: str) -> bool:
    return bool(connection.scalar(sql.select(sql.exists().where(DEVICES.c.name == name))))


def _parts(name: str) -> tuple[str, int]:
    match = NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 1)


def add_device(connection: sql.Connection, new: Device, stem: str, number: int) -> Device:
    """Add a device under a name that `free_name` gave; the device with its revision.

    Raises:
        IntegrityError: There is a device of that id, key or name.
    """
    row = asdict(new) | {"stem": stem, "number": number} | _revised(DEVICES)
    added = sql.insert(DEVICES).values(**row).returning(DEVICES.c.revision)
    return replace(new, revision=connection.execute(added).scalar_one())


def start(
    connection: sql.Connection,
    known: Device,
    own_tags: Mapping[str, str],
    facts: DeviceFacts,
    started_at_s: float,
    now_s: float,
    life: str = "",
) -> Device:
    """Note what a device says of itself as its client starts; the device as it is now."""
    here = DEVICES.c.device_id == known.device_id
    told = {"own_tags": dict(own_tags), "facts": asdict(facts)}
    times = {"started_at_s": started_at_s, "last_seen_s": now_s, "life": life}
    changed = sql.update(DEVICES).where(here).values(**told, **times, **_revised(DEVICES))
    revision = connection.execute(changed.returning(DEVICES.c.revision)).scalar_one()
    return replace(
        known,
        own_tags=dict(own_tags),
        facts=facts,
        started_at_s=started_at_s,
        last_seen_s=now_s,
        revision=revision,
        life=life,
    )


def tag(
    database: Database,
    device_id: str,
    changes: Mapping[str, str],
    check: Callable[[dict[str, str]], object] | None = None,
) -> dict[str, str]:
    """Set some of the operator's tags of a device, and take away those that are empty.

    Others may do so at the same moment: no change is lost.

    Args:
        database: Of the store.
        device_id: The device.
        changes: Tags by their names.
        check: Called with all of them where there are more than before: with fewer it may still
            have what was once let in. Raises if they are wrong.

    Returns:
        All of the operator's tags of the device.
    """
    here = DEVICES.c.device_id == device_id
    with database.transaction() as connection:
        # SQLite lets others write until the first write of a transaction: read behind one.
        connection.execute(sql.update(DEVICES).where(here).values(tags=DEVICES.c.tags))
        before = connection.execute(sql.select(DEVICES.c.tags).where(here)).scalar_one()
        merged = {key: value for key, value in {**before, **changes}.items() if value}
        if check and len(merged) > len(before):
            check(merged)
        changed = sql.update(DEVICES).where(here, KNOWN)
        connection.execute(changed.values(tags=merged, **_revised(DEVICES)))
    return merged


def revoke(database: Database, device_id: str, now_s: float) -> None:
    here = (DEVICES.c.device_id == device_id) & DEVICES.c.revoked_at_s.is_(None)
    database.write(sql.update(DEVICES).where(here).values(revoked_at_s=now_s, **_revised(DEVICES)))


def forget(connection: sql.Connection, device_id: str, now_s: float) -> None:
    """Empty a device's row but for its id and its key's hash, which is let in no more.

    With it go its reports and how it stands to runs.
    """
    for table in (REPORTS, MEMBERSHIPS):
        connection.execute(sql.delete(table).where(table.c.device_id == device_id))
    name, stem, number = free_name(connection, device_id, device_id)
    nothing = {"name": name, "stem": stem, "number": number, "last_seen_s": None}
    nothing |= {"own_tags": {}, "tags": {}, "facts": {}, "token_id": None, "life": ""}
    gone = {"revoked_at_s": now_s, "forgotten_at_s": now_s, "cloned_at_s": None}
    here = sql.update(DEVICES).where(DEVICES.c.device_id == device_id)
    connection.execute(here.values(**nothing, **gone, **_revised(DEVICES)))


def of_known(table: sql.Table, row: Mapping[str, Any]) -> Statement:
    """What adds a row about a device; it adds none about one that was forgotten.

    A request may have come before that, and ends after it.
    """
    told = [sql.type_coerce(one, table.c[name].type) for name, one in row.items()]
    gone = sql.exists().where(DEVICES.c.device_id == row["device_id"], ~KNOWN)
    return sql.insert(table).from_select(list(row), sql.select(*told).where(~gone))


def held(device_id: str) -> Statement:
    """What an event of a device is written beside: it finds none that was forgotten."""
    here = sql.update(DEVICES).where(DEVICES.c.device_id == device_id, KNOWN)
    return here.values(last_seen_s=DEVICES.c.last_seen_s)


def forgotten(database: Database) -> set[str]:
    """Ids of the devices that were forgotten."""
    return {row["device_id"] for row in database.rows(sql.select(DEVICES).where(~KNOWN))}


def note_cloned(database: Database, device_id: str, now_s: float) -> None:
    here = (DEVICES.c.device_id == device_id) & KNOWN
    database.write(sql.update(DEVICES).where(here).values(cloned_at_s=now_s, **_revised(DEVICES)))


def saw(database: Database, seen: Mapping[str, float]) -> None:
    here = (DEVICES.c.device_id == sql.bindparam("id")) & KNOWN
    statement = sql.update(DEVICES).where(here).values(last_seen_s=sql.bindparam("at_s"))
    rows = [{"id": device_id, "at_s": at_s} for device_id, at_s in seen.items()]
    database.write_many(statement, rows)


def seen_since(database: Database, at_s: float) -> dict[str, float]:
    """Devices that were last seen after a time, and when."""
    chosen = sql.select(DEVICES.c.device_id, DEVICES.c.last_seen_s)
    found = database.each(chosen.where(DEVICES.c.last_seen_s > at_s))
    return {intern(row["device_id"]): row["last_seen_s"] for row in found}


def _revised(table: sql.Table) -> dict[str, Any]:
    following = sql.select(sql.func.coalesce(sql.func.max(table.c.revision), 0) + 1)
    return {"revision": following.scalar_subquery()}


def _found(connection: sql.Connection, here: sql.ColumnElement[bool]) -> Device | None:
    row = connection.execute(sql.select(DEVICES).where(here)).mappings().one_or_none()
    return _device(row) if row else None


def _device(row: Mapping[Any, Any]) -> Device:
    kept = {name: row[name] for name in Device.__dataclass_fields__ if name != "facts"}
    kept["device_id"] = intern(row["device_id"])
    return Device(**kept, facts=_facts(tuple((UNKNOWN | dict(row["facts"])).items())))


@lru_cache(4096)  # of facts that are held once for all devices that say them
def _facts(told: tuple[tuple[str, Any], ...]) -> DeviceFacts:
    """What devices say of themselves, held once for all that say the same."""
    return msgspec.convert(dict(told), DeviceFacts)


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a run.

    Attributes:
        membership: What it said last.
        at_s: Unix time at which it said so.
    """

    membership: Membership
    at_s: float

    @property
    def is_joined(self) -> bool:
        return self.membership.state == "joined"


def members(database: Database, run_id: str) -> dict[str, Member]:
    """Everyone who answered a run's invitation, by device id."""
    chosen = sql.select(MEMBERSHIPS).where(MEMBERSHIPS.c.run_id == run_id)
    rows = database.each(chosen.order_by(MEMBERSHIPS.c.device_id))
    return {intern(row["device_id"]): _member(row) for row in rows}


def who_joined(database: Database, run_id: str) -> set[str]:
    """Ids of everyone who said to take part in a run, at home by now too, and has not declined."""
    here = (MEMBERSHIPS.c.run_id == run_id) & (MEMBERSHIPS.c.state != "declined")
    rows = database.each(sql.select(MEMBERSHIPS.c.device_id).where(here))
    return {row["device_id"] for row in rows}


def memberships_of(database: Database, device_id: str) -> dict[str, Member]:
    """How a device stands to the runs that it was invited to, by run id."""
    chosen = sql.select(MEMBERSHIPS).where(MEMBERSHIPS.c.device_id == device_id)
    return {row["run_id"]: _member(row) for row in database.rows(chosen)}


def newer(database: Database, revision: int) -> list[tuple[int, str, str, Member]]:
    """What was said after a revision: its own, run, device, and how that stands to it."""
    chosen = sql.select(MEMBERSHIPS).where(MEMBERSHIPS.c.revision > revision)
    rows = database.rows(chosen.order_by(MEMBERSHIPS.c.revision))
    return [(row["revision"], row["run_id"], row["device_id"], _member(row)) for row in rows]


def said_at_s(connection: sql.Connection, device_id: str) -> float:
    """When a device last said how it stands to a run, Unix time; 0 for never."""
    newest = sql.select(sql.func.max(MEMBERSHIPS.c.at_s))
    found = connection.execute(newest.where(MEMBERSHIPS.c.device_id == device_id)).scalar_one()
    return 0.0 if found is None else float(found)


def put_member(database: Database, run_id: str, device_id: str, member: Member) -> bool:
    """Note how a device stands to a run, if it was not forgotten; durable when this returns."""
    told = member.membership
    values = {
        "state": told.state,
        "failure": told.failure,
        "peak_bytes": told.peak_bytes,
        "most_rank": told.most_rank,
        "mask_key": told.mask_key,
        "at_s": member.at_s,
        **_revised(MEMBERSHIPS),
    }
    here = (MEMBERSHIPS.c.run_id == run_id) & (MEMBERSHIPS.c.device_id == device_id)

    def put(connection: sql.Connection) -> bool:
        new = of_known(MEMBERSHIPS, {"run_id": run_id, "device_id": device_id} | values)
        is_there = connection.execute(sql.update(MEMBERSHIPS).where(here).values(**values)).rowcount
        return bool(is_there or connection.execute(new).rowcount)

    return database.share(put)


TOLD = ("state", "failure", "peak_bytes", "most_rank", "mask_key")


def _member(row: Mapping[str, Any]) -> Member:
    return Member(_told(*(row[name] for name in TOLD)), row["at_s"])


@lru_cache(4096)
def _told(*told: Any) -> Membership:
    """What devices said, held once for all that said the same."""
    return msgspec.convert(dict(zip(TOLD, told, strict=True)), Membership)
