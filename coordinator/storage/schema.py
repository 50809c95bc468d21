"""Tables of the store, and a copy of all rows; a change, of an event too, raises `REVISION`."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sql

from smidgen.coordinator.storage.database import Database
from smidgen.coordinator.storage.dialects.postgres import begin_long

REVISION = "0011"
METADATA = sql.MetaData()
# The same order and room everywhere: PostgreSQL would sort texts by its language, and hold numbers
# up to 2^31.
TEXT = sql.String().with_variant(sql.String(collation="C"), "postgresql")
LONG = sql.Text().with_variant(sql.Text(collation="C"), "postgresql")
WHOLE = sql.Integer().with_variant(sql.BigInteger(), "postgresql")
VERSION = sql.Table(
    "alembic_version", METADATA, sql.Column("version_num", sql.String(32), primary_key=True)
)
# One row: whether the ends of the journals, and certificates, are kept beside the database; which
# fleet it holds, where blobs could be another's; where it was moved to; where a move brings it
# from, until all of it is here; and how many of a run's newest rounds keep their adapter, as
# `serve` was told last (null: nobody said so).
STORE = sql.Table(
    "store",
    METADATA,
    sql.Column("is_watched", sql.Boolean, nullable=False),
    sql.Column("is_secured", sql.Boolean, nullable=False, server_default=sql.false()),
    sql.Column("fleet_id", TEXT, nullable=False, server_default=""),
    sql.Column("moved_to", TEXT, nullable=False, server_default=""),
    sql.Column("arriving", TEXT, nullable=False, server_default=""),
    sql.Column("keep_rounds", WHOLE),
)


def _run_column(**options: Any) -> sql.Column[str]:
    return sql.Column("run_id", TEXT, sql.ForeignKey("runs.run_id"), **options)


def _device_column(**options: Any) -> sql.Column[str]:
    return sql.Column("device_id", TEXT, sql.ForeignKey("devices.device_id"), **options)


RUNS = sql.Table(
    "runs",
    METADATA,
    sql.Column("run_id", TEXT, primary_key=True),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("config", LONG, nullable=False),
    sql.Column("base_id", TEXT, nullable=False),
    sql.Column("base_reference", TEXT, nullable=False),
    sql.Column("architecture", TEXT, nullable=False),
    sql.Column("adapter_sha256", TEXT, nullable=False),
    sql.Column("secret", TEXT, nullable=False),
)
# What lets devices enrol: counted, expiring, revocable; null where there is no such bound.
TOKENS = sql.Table(
    "tokens",
    METADATA,
    sql.Column("token_id", TEXT, primary_key=True),
    sql.Column("token_sha256", TEXT, nullable=False, unique=True),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("expires_at_s", sql.Float),
    sql.Column("uses", WHOLE),
    sql.Column("used", WHOLE, nullable=False, default=0),
    sql.Column("revoked_at_s", sql.Float),
    sql.Column("tags", sql.JSON, nullable=False),
)
# `name` is `stem` or `stem-number`. `own_tags` are the device's words, `tags` the operator's.
# `started_at_s`: its client's last start. `revision` grows with each change of a row, `last_seen_s`
# left out, so that the process that serves reads only what is new. `cloned_at_s`: when two lives of
# its key were last seen at once. `life`: of the client that enrolled last. `forgotten_at_s`: since
# when its row holds nothing but its id, times, and the hash of its key, which is let in no more.
DEVICES = sql.Table(
    "devices",
    METADATA,
    sql.Column("device_id", TEXT, primary_key=True),
    sql.Column("key_sha256", TEXT, nullable=False, unique=True),
    sql.Column("name", TEXT, nullable=False, unique=True),
    sql.Column("stem", TEXT, nullable=False),
    sql.Column("number", WHOLE, nullable=False),
    sql.Column("own_tags", sql.JSON, nullable=False),
    sql.Column("tags", sql.JSON, nullable=False),
    sql.Column("facts", sql.JSON, nullable=False),
    sql.Column("token_id", TEXT),
    sql.Column("enrolled_at_s", sql.Float, nullable=False),
    sql.Column("started_at_s", sql.Float, nullable=False),
    sql.Column("last_seen_s", sql.Float),
    sql.Column("revoked_at_s", sql.Float),
    sql.Column("revision", WHOLE, nullable=False, index=True),
    sql.Column("cloned_at_s", sql.Float),
    sql.Column("life", TEXT, nullable=False, server_default=""),
    sql.Column("forgotten_at_s", sql.Float),
    sql.Index("ix_devices_stem_number", "stem", "number"),
)
# How devices stand to runs: `smidgen.edge_client.wire.fleet.Membership` with its time. `revision`
# grows with each change of a row.
MEMBERSHIPS = sql.Table(
    "memberships",
    METADATA,
    _run_column(primary_key=True),
    _device_column(primary_key=True),
    sql.Column("state", TEXT, nullable=False),
    sql.Column("failure", TEXT),
    sql.Column("peak_bytes", WHOLE),
    sql.Column("at_s", sql.Float, nullable=False),
    sql.Column("most_rank", WHOLE, nullable=False, server_default="0"),
    sql.Column("mask_key", TEXT, nullable=False, server_default=""),
    sql.Column("revision", WHOLE, nullable=False, server_default="0", index=True),
)
# `chain`: SHA-256 over the chain before and the payload; see `coordinator/storage/chain.py`.
EVENTS = sql.Table(
    "events",
    METADATA,
    _run_column(primary_key=True),
    sql.Column("seq", WHOLE, primary_key=True, autoincrement=False),
    sql.Column("payload", LONG, nullable=False),
    sql.Column("chain", TEXT, nullable=False, server_default=""),
)
REPORTS = sql.Table(
    "reports",
    METADATA,
    sql.Column("work_id", TEXT, primary_key=True),
    _run_column(nullable=False),
    sql.Column("device_id", TEXT, nullable=False, index=True),
    sql.Column("round_index", WHOLE, nullable=False),
    sql.Column("attempt", WHOLE, nullable=False),
    sql.Column("kind", TEXT, nullable=False),
    sql.Column("is_late", sql.Boolean, nullable=False),
    sql.Column("report", sql.JSON, nullable=False),
    sql.Index("ix_reports_run_id_round_index", "run_id", "round_index"),
)
# What operators ask of a run: written by commands and by the operator's API, carried out and
# journaled by the process that serves, oldest first.
ORDERS = sql.Table(
    "orders",
    METADATA,
    sql.Column("order_id", WHOLE, primary_key=True, autoincrement=True),
    _run_column(nullable=False),
    sql.Column("kind", TEXT, nullable=False),  # see `rounds.orders`
    sql.Column("rounds", WHOLE),  # of extend
    sql.Column("asked_at_s", sql.Float, nullable=False),
    sql.Column("done_at_s", sql.Float),
    sql.Column("refused", TEXT),  # why it could not be followed; null where it was
)
# Who may look (viewer) and who may change (operator), by bearer token.
OPERATORS = sql.Table(
    "operators",
    METADATA,
    sql.Column("operator_id", TEXT, primary_key=True),
    sql.Column("token_sha256", TEXT, nullable=False, unique=True),
    sql.Column("role", TEXT, nullable=False),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("revoked_at_s", sql.Float),
)
# Who is logged in on the page, by the hash of a cookie's secret; ends with its operator.
SESSIONS = sql.Table(
    "sessions",
    METADATA,
    sql.Column("session_sha256", TEXT, primary_key=True),
    sql.Column("operator_id", TEXT, sql.ForeignKey("operators.operator_id"), nullable=False),
    sql.Column("expires_at_s", sql.Float, nullable=False),
)


AT_ONCE = 500  # rows in memory
TABLES = [table for table in METADATA.sorted_tables if table not in (VERSION, STORE)]


class CopyError(ValueError):
    """Rows that are not the same in the copy."""


def is_empty(database: Database) -> bool:
    """Whether a store's database holds no row beside its own."""
    with database.reading() as connection:
        return all(
            connection.execute(sql.select(table).limit(1)).first() is None for table in TABLES
        )


def mark_arriving(target: sql.Connection, source: str) -> None:
    """Say of a database that a move brings its rows, and take away what an earlier one left.

    Args:
        target: In the transaction that brings them.
        source: Where they come from.

    Raises:
        CopyError: It holds rows that no move has left.
    """
    if target.execute(sql.select(STORE.c.arriving)).scalar_one():
        for table in reversed(TABLES):
            target.execute(sql.delete(table))
    elif any(target.execute(sql.select(table).limit(1)).first() for table in TABLES):
        raise CopyError("the place holds a fleet already")
    target.execute(sql.update(STORE).values(arriving=source))


def copy_rows(source: sql.Connection, target: sql.Connection) -> None:
    """Copy all rows between two databases of the newest schema.

    Args:
        source: In a transaction that sees one moment.
        target: In the transaction that makes the copy; of an empty database.

    Raises:
        CopyError: What was written is not what was read; nothing is kept then.
    """
    for one in (source, target):
        if one.dialect.name == "postgresql":
            begin_long(one)
    for table in TABLES:
        for rows in _rows(source, table):
            target.execute(sql.insert(table), rows)
        if _digest(source, table) != _digest(target, table):
            raise CopyError(f"the rows of {table.name} are not the same in the copy")
    if target.dialect.name == "postgresql":  # rows that say their number do not count it on
        last = sql.select(sql.func.coalesce(sql.func.max(ORDERS.c.order_id), 0) + 1)
        counter = sql.func.pg_get_serial_sequence("orders", "order_id")
        target.execute(sql.select(sql.func.setval(counter, last.scalar_subquery(), False)))


def _rows(connection: sql.Connection, table: sql.Table) -> Iterator[list[dict[str, Any]]]:
    chosen = sql.select(table).order_by(*table.primary_key.columns)
    found = connection.execute(chosen, execution_options={"yield_per": AT_ONCE})
    for rows in found.mappings().partitions():
        yield [dict(row) for row in rows]


def _digest(connection: sql.Connection, table: sql.Table) -> str:
    digest = hashlib.sha256()
    for rows in _rows(connection, table):
        for row in rows:
            digest.update(json.dumps(row, sort_keys=True).encode())
    return digest.hexdigest()
