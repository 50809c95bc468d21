"""Tables of the store, as the newest revision of `coordinator/storage/migrations` leaves them."""

from typing import Any

import sqlalchemy as sql

METADATA = sql.MetaData()
VERSION = sql.Table(
    "alembic_version", METADATA, sql.Column("version_num", sql.String(32), primary_key=True)
)
# One row: whether the ends of the journals, and certificates, are kept beside the database.
STORE = sql.Table(
    "store",
    METADATA,
    sql.Column("is_watched", sql.Boolean, nullable=False),
    sql.Column("is_secured", sql.Boolean, nullable=False, server_default=sql.false()),
)


def _run_column(**options: Any) -> sql.Column[str]:
    return sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), **options)


def _device_column(**options: Any) -> sql.Column[str]:
    return sql.Column("device_id", sql.String, sql.ForeignKey("devices.device_id"), **options)


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
# What lets devices enrol: counted, expiring, revocable; null where there is no such bound.
TOKENS = sql.Table(
    "tokens",
    METADATA,
    sql.Column("token_id", sql.String, primary_key=True),
    sql.Column("token_sha256", sql.String, nullable=False, unique=True),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("expires_at_s", sql.Float),
    sql.Column("uses", sql.Integer),
    sql.Column("used", sql.Integer, nullable=False, default=0),
    sql.Column("revoked_at_s", sql.Float),
    sql.Column("tags", sql.JSON, nullable=False),
)
# `name` is `stem` or `stem-number`. `own_tags` are the device's words, `tags` the operator's.
# `started_at_s`: its client's last start. `revision` grows with each change of a row, `last_seen_s`
# left out, so that the process that serves reads only what is new. `cloned_at_s`: when two lives of
# its key were last seen at once.
DEVICES = sql.Table(
    "devices",
    METADATA,
    sql.Column("device_id", sql.String, primary_key=True),
    sql.Column("key_sha256", sql.String, nullable=False, unique=True),
    sql.Column("name", sql.String, nullable=False, unique=True),
    sql.Column("stem", sql.String, nullable=False),
    sql.Column("number", sql.Integer, nullable=False),
    sql.Column("own_tags", sql.JSON, nullable=False),
    sql.Column("tags", sql.JSON, nullable=False),
    sql.Column("facts", sql.JSON, nullable=False),
    sql.Column("token_id", sql.String),
    sql.Column("enrolled_at_s", sql.Float, nullable=False),
    sql.Column("started_at_s", sql.Float, nullable=False),
    sql.Column("last_seen_s", sql.Float),
    sql.Column("revoked_at_s", sql.Float),
    sql.Column("revision", sql.Integer, nullable=False, index=True),
    sql.Column("cloned_at_s", sql.Float),
    sql.Index("ix_devices_stem_number", "stem", "number"),
)
# How devices stand to runs: `edge_client.wire.fleet.Membership` with its time.
MEMBERSHIPS = sql.Table(
    "memberships",
    METADATA,
    _run_column(primary_key=True),
    _device_column(primary_key=True),
    sql.Column("state", sql.String, nullable=False),
    sql.Column("failure", sql.String),
    sql.Column("peak_bytes", sql.Integer),
    sql.Column("at_s", sql.Float, nullable=False),
    sql.Column("most_rank", sql.Integer, nullable=False, server_default="0"),
)
# `chain`: SHA-256 over the chain before and the payload; see `coordinator/storage/chain.py`.
EVENTS = sql.Table(
    "events",
    METADATA,
    _run_column(primary_key=True),
    sql.Column("seq", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("payload", sql.Text, nullable=False),
    sql.Column("chain", sql.String, nullable=False, server_default=""),
)
REPORTS = sql.Table(
    "reports",
    METADATA,
    sql.Column("work_id", sql.String, primary_key=True),
    _run_column(nullable=False),
    sql.Column("device_id", sql.String, nullable=False, index=True),
    sql.Column("round_index", sql.Integer, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
    sql.Column("kind", sql.String, nullable=False),
    sql.Column("is_late", sql.Boolean, nullable=False),
    sql.Column("report", sql.JSON, nullable=False),
    sql.Index("ix_reports_run_id_round_index", "run_id", "round_index"),
)
# What operators ask of a run: written by commands and by the operator's API, carried out and
# journaled by the process that serves, oldest first.
ORDERS = sql.Table(
    "orders",
    METADATA,
    sql.Column("order_id", sql.Integer, primary_key=True, autoincrement=True),
    _run_column(nullable=False),
    sql.Column("kind", sql.String, nullable=False),  # pause, resume, stop, extend
    sql.Column("rounds", sql.Integer),  # of extend
    sql.Column("asked_at_s", sql.Float, nullable=False),
    sql.Column("done_at_s", sql.Float),
    sql.Column("refused", sql.String),  # why it could not be followed; null where it was
)
# Who may look (viewer) and who may change (operator), by bearer token.
OPERATORS = sql.Table(
    "operators",
    METADATA,
    sql.Column("operator_id", sql.String, primary_key=True),
    sql.Column("token_sha256", sql.String, nullable=False, unique=True),
    sql.Column("role", sql.String, nullable=False),
    sql.Column("created_at_s", sql.Float, nullable=False),
    sql.Column("revoked_at_s", sql.Float),
)
# Who is logged in on the page, by the hash of a cookie's secret; ends with its operator.
SESSIONS = sql.Table(
    "sessions",
    METADATA,
    sql.Column("session_sha256", sql.String, primary_key=True),
    sql.Column("operator_id", sql.String, sql.ForeignKey("operators.operator_id"), nullable=False),
    sql.Column("expires_at_s", sql.Float, nullable=False),
)
