"""Making a store's database, or bringing an old one to the newest revision after a copy of it.

Either happens in one transaction: after a power cut the database is the old one or the new one, and
of several processes that find none one makes it. Alembic is imported only where a store is old.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from filecmp import cmp
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from coordinator.storage.dialects.postgres import begin_writing
from coordinator.storage.schema import METADATA, STORE, VERSION
from edge_client.errors import Failed
from edge_client.tables import size

HEAD = "0008"
KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", HEAD)
FOREIGN = "of no version"  # tables, and nothing that says whose
OLDER = {1: "0001", 2: "0002"}  # by the table `schema_version`, which ended with 0002
FOLDER = Path(__file__).parent


def revision_of(engine: sql.Engine) -> str | None:
    """The revision of a database; None for one without tables.

    A revision that this smidgen does not know is given back as it is.
    """
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: sql.Connection) -> str | None:
    names = sql.inspect(connection).get_table_names()
    if "alembic_version" in names:
        found = connection.scalar(sql.text("SELECT version_num FROM alembic_version"))
        return None if found is None else str(found)
    if "schema_version" in names:
        version = connection.scalar(sql.text("SELECT version FROM schema_version"))
        return OLDER.get(version, f"of version {version}")
    return FOREIGN if names else None


def create(url: sql.URL) -> None:
    """Make the tables of an empty database; nothing where another process was quicker."""
    with _alone(url) as connection:
        if _revision(connection) is None:
            METADATA.create_all(connection)
            connection.execute(sql.insert(STORE).values(is_watched=False))
            connection.execute(sql.insert(VERSION).values(version_num=HEAD))


def copy_of(database: Path) -> Path:
    """Where the copy of a database lies that was older than the newest revision."""
    return database.with_name(f"{database.name}.before-{HEAD}")


def keep_copy(database: Path) -> Path:
    """Copy an SQLite database, its write-ahead log included; a cut leaves no half copy.

    A copy that is there is never replaced: another one gets a number.

    Raises:
        Failed: There is no room for it; nothing is left of the attempt.
    """
    copy = copy_of(database)
    temporary = copy.with_name(f"{copy.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        _copy(database, temporary)
    except (sqlite3.Error, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise Failed(
            f"before a store is brought up to date its database is copied, and {copy} cannot be "
            f"written: {error}; let {size(database.stat().st_size)} be free there and try again"
        ) from error
    number = 1
    while copy.exists() and not cmp(temporary, copy, shallow=False):
        number += 1
        copy = copy.with_name(f"{copy_of(database).name}-{number}")
    temporary.replace(copy)
    return copy


def _copy(database: Path, to: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as kept:
        kept.execute("PRAGMA synchronous=FULL")
        source.backup(kept)
    to.chmod(0o600)


def upgrade(url: sql.URL, revision: str) -> None:
    """Bring a database of a known revision to the newest one; all of it or nothing."""
    from alembic import command
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config(attributes={})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _alone(url) as connection:
        config.attributes["connection"] = connection
        if revision in OLDER.values():
            command.stamp(config, revision)
        command.upgrade(config, "head")


@contextmanager
def _alone(url: sql.URL) -> Iterator[sql.Connection]:
    """One transaction, begun before anything is read, in which tables may change too."""
    engine = sql.create_engine(url, poolclass=sql.NullPool, hide_parameters=True)
    if engine.dialect.name == "sqlite":
        # sqlite3 would begin no transaction before a table is changed.
        sql.event.listen(engine, "connect", _leave_transactions)
        sql.event.listen(engine, "begin", _begin)
    with engine.begin() as connection:
        if engine.dialect.name != "sqlite":
            begin_writing(connection)
        yield connection
    engine.dispose()


def _leave_transactions(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA busy_timeout=10000")
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: sql.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
