"""Rows of memberships: how devices stand to runs, as they last said it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sql

from coordinator.storage.database import Database
from coordinator.storage.schema import MEMBERSHIPS
from edge_client.wire.fleet import Membership


@dataclass(frozen=True)
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
    rows = database.rows(chosen.order_by(MEMBERSHIPS.c.device_id))
    return {row["device_id"]: _member(row) for row in rows}


def memberships_of(database: Database, device_id: str) -> dict[str, Member]:
    """How a device stands to the runs that it was invited to, by run id."""
    chosen = sql.select(MEMBERSHIPS).where(MEMBERSHIPS.c.device_id == device_id)
    return {row["run_id"]: _member(row) for row in database.rows(chosen)}


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
    }
    here = (MEMBERSHIPS.c.run_id == run_id) & (MEMBERSHIPS.c.device_id == device_id)

    def put(connection: sql.Connection) -> None:
        if not connection.execute(sql.update(MEMBERSHIPS).where(here).values(**values)).rowcount:
            new = {"run_id": run_id, "device_id": device_id} | values
            connection.execute(sql.insert(MEMBERSHIPS), [new])

    database.share(put)


def _member(row: Mapping[str, Any]) -> Member:
    told = {name: row[name] for name in ("state", "failure", "peak_bytes", "most_rank")}
    return Member(msgspec.convert(told, Membership), row["at_s"])
