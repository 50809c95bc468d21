"""Runs with a token each, and devices that belong to one run."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """The tables of `schema_version` 1."""
    op.create_table(
        "runs",
        sql.Column("run_id", sql.String, primary_key=True),
        sql.Column("created_at_s", sql.Float, nullable=False),
        sql.Column("config", sql.Text, nullable=False),
        sql.Column("base_id", sql.String, nullable=False),
        sql.Column("base_reference", sql.String, nullable=False),
        sql.Column("architecture", sql.String, nullable=False),
        sql.Column("adapter_sha256", sql.String, nullable=False),
        sql.Column("secret", sql.String, nullable=False),
    )
    op.create_table("schema_version", sql.Column("version", sql.Integer, nullable=False))
    op.create_table(
        "tokens",
        sql.Column("token_sha256", sql.String, primary_key=True),
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), nullable=False),
    )
    op.create_table(
        "devices",
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), primary_key=True),
        sql.Column("device_id", sql.String, primary_key=True),
        sql.Column("key_sha256", sql.String, nullable=False, unique=True),
        sql.Column("facts", sql.JSON, nullable=False),
        sql.Column("enrolled_at_s", sql.Float, nullable=False),
        sql.Column("last_seen_s", sql.Float),
    )
    op.create_table(
        "events",
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), primary_key=True),
        sql.Column("seq", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("payload", sql.Text, nullable=False),
    )
    op.create_table(
        "reports",
        sql.Column("work_id", sql.String, primary_key=True),
        sql.Column("run_id", sql.String, sql.ForeignKey("runs.run_id"), nullable=False, index=True),
        sql.Column("device_id", sql.String, nullable=False),
        sql.Column("round_index", sql.Integer, nullable=False),
        sql.Column("attempt", sql.Integer, nullable=False),
        sql.Column("kind", sql.String, nullable=False),
        sql.Column("is_late", sql.Boolean, nullable=False),
        sql.Column("report", sql.JSON, nullable=False),
    )
