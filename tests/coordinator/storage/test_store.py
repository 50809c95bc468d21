import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from smidgen.coordinator.rounds.events import Finished, Resumed
from smidgen.coordinator.serving.server import sole_server
from smidgen.coordinator.storage.credentials import insert_token
from smidgen.coordinator.storage.database import DATABASE, StoreError
from smidgen.coordinator.storage.devices import Member, put_member
from smidgen.coordinator.storage.schema import REVISION
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.tensors import sha256

RUN = Run("r1", 1.0, "{}", "b", "/base", "bert", "a" * 64, "secret")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        opened.add_run(RUN)
        yield opened


def test_a_store_gives_back_what_was_put_in(store: Store, tmp_path: Path) -> None:
    store.append("r1", 0, Resumed(1.0))
    store.append("r1", 1, Finished(2.0))
    with closing(Store(tmp_path)) as again:
        assert again.runs() == [RUN]
        assert again.events("r1") == [Resumed(1.0), Finished(2.0)]


def test_a_place_of_the_journal_is_written_once(store: Store) -> None:
    store.append("r1", 0, Resumed(1.0))
    with pytest.raises(StoreError, match="another process"):
        store.append("r1", 0, Resumed(2.0))
    assert store.events("r1") == [Resumed(1.0)]


def test_foreign_keys_hold(store: Store) -> None:
    with pytest.raises(IntegrityError):
        put_member(store.database, "r1", "no-such-device", Member(Membership("joined"), 1.0))


def test_a_run_comes_with_its_token_or_not_at_all(store: Store) -> None:
    statement = insert_token("secret", 1.0)[1]
    store.database.write(statement)
    with pytest.raises(IntegrityError):
        store.add_run(replace(RUN, run_id="r2"), statement)
    assert store.runs() == [RUN]


def test_every_commit_is_synced(store: Store) -> None:
    with store.database.engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    assert pragmas == wanted


def test_a_blob_is_named_by_its_bytes(store: Store) -> None:
    assert store.put(b"delta") == store.put(b"delta") == sha256(b"delta")
    assert store.read(sha256(b"delta")) == b"delta"
    assert [path.name for path in (store.folder / "blobs").iterdir()] == [sha256(b"delta")]


def test_a_damaged_blob_is_not_read(store: Store) -> None:
    name = store.put(b"delta")
    store.blobs.path(name).write_bytes(b"d3lta")
    with pytest.raises(OSError, match="is damaged"):
        store.read(name)


def test_what_a_killed_process_left_is_swept(store: Store) -> None:
    name = store.put(b"delta")
    (store.folder / "blobs" / f"{name}.ab.tmp").write_bytes(b"del")
    store.blobs.sweep()
    assert [path.name for path in (store.folder / "blobs").iterdir()] == [name]


def test_a_start_waits_for_a_command_and_leaves_alone_what_create_is_writing(
    store: Store, tmp_path: Path
) -> None:
    half = store.folder / "blobs" / "delta.ab.tmp"
    half.write_bytes(b"del")
    with (tmp_path / "serve.lock").open("a") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)  # as `status` does
        threading.Timer(0.3, fcntl.flock, (probe, fcntl.LOCK_UN)).start()
        with store.claiming(), sole_server(store):
            assert half.exists()
    with sole_server(store):
        assert not half.exists()


def test_a_store_of_another_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
    said = f"schema 0099, and this smidgen knows {REVISION} alone; use the smidgen that wrote it"
    with pytest.raises(StoreError, match=said):
        Store(tmp_path)


def test_adapters_without_their_database_are_not_taken_for_a_new_store(store: Store) -> None:
    store.put(b"delta")
    store.close()
    database = store.folder / DATABASE
    database.write_bytes(b"")
    with pytest.raises(StoreError, match="holds adapters, but its database is empty"):
        Store(store.folder)


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database, whatever its name says" * 40)
    with pytest.raises(StoreError, match="cannot open the store"):
        Store(tmp_path)


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x"])
def test_a_store_that_cannot_be_made_is_named_once_with_what_to_do(place: str) -> None:
    with pytest.raises(StoreError, match=f"a store at {place} cannot be made.*--store$") as caught:
        Store(Path(place))
    assert str(caught.value).count(place) == 1
