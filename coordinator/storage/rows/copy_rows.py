"""Copies every row of a store into another database and verifies that they are equal."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sql

from coordinator.storage.database import Database
from coordinator.storage.dialects.postgres import begin_long
from coordinator.storage.schema import METADATA, ORDERS, STORE, VERSION

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
