"""What Alembic runs for each of its commands: the revisions, within the caller's transaction."""

from alembic import context

from coordinator.storage.schema import METADATA


def run() -> None:
    """Bring the connection that `upgrade` gave to the wanted revision."""
    connection = context.config.attributes["connection"]
    context.configure(connection=connection, target_metadata=METADATA)
    with context.begin_transaction():
        context.run_migrations()


if hasattr(context, "config"):  # Alembic runs this file; a mere import does nothing
    run()
