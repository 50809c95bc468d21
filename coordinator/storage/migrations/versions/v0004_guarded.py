"""A journal that notices: every event carries a hash over itself and all before it.

Also whether the journals' ends are kept beside the database, and when a device's state folder was
found cloned.
"""

import hashlib
import json

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"

FIELDS = (
    *("run_id", "config", "base_id", "base_reference", "architecture", "adapter_sha256"),
    "secret",
)


def upgrade() -> None:
    """Add the columns, and chain the journals as they are."""
    op.add_column("events", sql.Column("chain", sql.String, nullable=False, server_default=""))
    op.add_column("devices", sql.Column("cloned_at_s", sql.Float))
    op.create_table("store", sql.Column("is_watched", sql.Boolean, nullable=False))
    connection = op.get_bind()
    connection.execute(sql.text("INSERT INTO store (is_watched) VALUES (false)"))
    runs = connection.execute(sql.text(f"SELECT {', '.join(FIELDS)} FROM runs")).mappings().all()
    for run in runs:
        first = hashlib.sha256(json.dumps([run[name] for name in FIELDS]).encode()).hexdigest()
        _chain(connection, run["run_id"], first)


def _chain(connection: sql.Connection, run_id: str, chain: str) -> None:
    events = sql.text("SELECT seq, payload FROM events WHERE run_id = :run_id ORDER BY seq")
    put = sql.text("UPDATE events SET chain = :chain WHERE run_id = :run_id AND seq = :seq")
    rows = []
    for seq, payload in connection.execute(events, {"run_id": run_id}):
        chain = hashlib.sha256(f"{chain}\n{payload}".encode()).hexdigest()
        rows.append({"chain": chain, "run_id": run_id, "seq": seq})
    if rows:
        connection.execute(put, rows)
