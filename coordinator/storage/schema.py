"""Tables of the store. Another shape of them, or of the reports, is another `SCHEMA_VERSION`."""

from typing import Any

import sqlalchemy as sql

SCHEMA_VERSION = 2
METADATA = sql.MetaData()


def _run_column(**options: Any) -> sql.Column[str]:
    return sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), **options)


VERSION = sql.Table("schema_version", METADATA, sql.Column("version", sql.Integer, nullable=False))
RUNS = sql.Table(
    "runs",
    METADATA,
    sql.Column("run_id", sql.String, primary_key=True),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("config", sql.Text, nullable=False),
    sql.Column("base_id", sql.String, nullable=False),
    sql.Column("base_reference", sql.String, nullable=False),
    sql.Column("architecture", sql.String, nullable=False),
    sql.Column("adapter_sha256", sql.String, nullable=False),
    sql.Column("secret", sql.String, nullable=False),
)
TOKENS = sql.Table(
    "tokens",
    METADATA,
    sql.Column("token_sha256", sql.String, primary_key=True),
    _run_column(nullable=False),
)
DEVICES = sql.Table(
    "devices",
    METADATA,
    _run_column(primary_key=True),
    sql.Column("device_id", sql.String, primary_key=True),
    sql.Column("key_sha256", sql.String, nullable=False, unique=True),
    sql.Column("facts", sql.JSON, nullable=False),
    sql.Column("enrolled_at_s", sql.Float, nullable=False),
    sql.Column("last_seen_s", sql.Float),
)
EVENTS = sql.Table(
    "events",
    METADATA,
    _run_column(primary_key=True),
    sql.Column("seq", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("payload", sql.Text, nullable=False),
)
REPORTS = sql.Table(
    "reports",
    METADATA,
    sql.Column("work_id", sql.String, primary_key=True),
    _run_column(nullable=False, index=True),
    sql.Column("device_id", sql.String, nullable=False),
    sql.Column("round_index", sql.Integer, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
    sql.Column("kind", sql.String, nullable=False),
    sql.Column("is_late", sql.Boolean, nullable=False),
    sql.Column("report", sql.JSON, nullable=False),
)
