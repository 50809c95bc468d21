"""A store that several machines may share: whose its blobs are, and where it was moved to.

What one process writes of devices and memberships the others find by its revision.

On PostgreSQL texts get an order that no language changes, and numbers the room that SQLite has.
"""

from typing import Any

import sqlalchemy as sql
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns, and change types where SQLite has but one."""
    for name in ("fleet_id", "moved_to"):
        op.add_column("store", sql.Column(name, sql.String, nullable=False, server_default=""))
    life = sql.Column("life", sql.String, nullable=False, server_default="")
    op.add_column("devices", life)
    revision = sql.Column("revision", sql.Integer, nullable=False, server_default="0")
    op.add_column("memberships", revision)
    op.create_index("ix_memberships_revision", "memberships", ["revision"])
    if op.get_bind().dialect.name == "postgresql":
        _retype(op.get_bind())


def _retype(connection: sql.Connection) -> None:
    found = sql.inspect(connection)
    for table in sorted(set(found.get_table_names()) - {"alembic_version"}):
        for column in found.get_columns(table):
            kind: Any = None
            if isinstance(column["type"], sql.Text):
                kind = sql.Text(collation="C")
            elif isinstance(column["type"], sql.String):
                kind = sql.String(collation="C")
            elif isinstance(column["type"], sql.Integer):
                kind = sql.BigInteger()
            if kind is not None:
                op.alter_column(table, column["name"], type_=kind)
