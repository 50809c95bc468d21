"""A store that remembers that it has certificates, so that their loss is noticed."""

import sqlalchemy as sql
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; `serve` fills it where there are certificates."""
    secured = sql.Column("is_secured", sql.Boolean, nullable=False, server_default=sql.false())
    op.add_column("store", secured)
