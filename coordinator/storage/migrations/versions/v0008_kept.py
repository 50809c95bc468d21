"""A store that knows how many rounds it keeps, and whether it is whole: a move may be under way."""

import sqlalchemy as sql
from alembic import op

from coordinator.storage.schema import TEXT, WHOLE

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the columns; no number of rounds: the file beside the database says it, as before."""
    arriving = sql.Column("arriving", TEXT, nullable=False, server_default="")
    op.add_column("store", arriving)
    op.add_column("store", sql.Column("keep_rounds", WHOLE))
