"""A store that knows the largest rank that a device takes in a run."""

import sqlalchemy as sql
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; 0: the run's rank, as every device took it before."""
    most_rank = sql.Column("most_rank", sql.Integer, nullable=False, server_default="0")
    op.add_column("memberships", most_rank)
