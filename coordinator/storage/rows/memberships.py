"""Rows of memberships: how devices stand to runs, as they last said it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec
import sqlalchemy as sql

from coordinator.storage.database import Database
from coordinator.storage.schema import MEMBERSHIPS
from edge_client.wire.fleet import Membership

MOST_KINDS = 4096  # of what is said that are held once for all who say it
NEXT_REVISION = sql.select(sql.func.coalesce(sql.func.max(MEMBERSHIPS.c.revision), 0) + 1)


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


def put_member(database: Database, run_id: str, device_id: str, member: Member) -> None:
    """Note how a device stands to a run; durable when this returns."""
    told = member.membership
    values = {
        "state": told.state,
        "failure": told.failure,
        "peak_bytes": told.peak_bytes,
        "most_rank": told.most_rank,
        "at_s": member.at_s,
        "revision": NEXT_REVISION.scalar_subquery(),
    }
    here = (MEMBERSHIPS.c.run_id == run_id) & (MEMBERSHIPS.c.device_id == device_id)

    def put(connection: sql.Connection) -> None:
        if not connection.execute(sql.update(MEMBERSHIPS).where(here).values(**values)).rowcount:
            new = {"run_id": run_id, "device_id": device_id} | values
            connection.execute(sql.insert(MEMBERSHIPS).values(**new))

    database.share(put)


def _member(row: Mapping[str, Any]) -> Member:
    told = (row[name] for name in ("state", "failure", "peak_bytes", "most_rank"))
    return Member(_told(*told), row["at_s"])


@lru_cache(MOST_KINDS)
def _told(*told: Any) -> Membership:
    """What devices said, held once for all that said the same."""
    names = ("state", "failure", "peak_bytes", "most_rank")
    return msgspec.convert(dict(zip(names, told, strict=True)), Membership)
