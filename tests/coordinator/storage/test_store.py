import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from coordinator.rounds.events import Finished, Resumed
from coordinator.storage.blobs import sweep
from coordinator.storage.store import DATABASE, Device, Run, Store, StoreError
from edge_client.wire.tensors import sha256

RUN = Run("r1", 1.0, "{}", "b", "/base", "bert", "a" * 64, "secret")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path)) as opened:
        opened.add_run(RUN, "token-hash")
        yield opened


def test_a_store_gives_back_what_was_put_in(store: Store, tmp_path: Path) -> None:
    store.append("r1", 0, Resumed(1.0))
    store.append("r1", 1, Finished(2.0))
    assert store.add_device(Device("r1", "hub"), "key-hash", {"cores": 4}, 1.0)
    with closing(Store(tmp_path)) as again:
        assert again.runs() == [RUN]
        assert again.events("r1") == [Resumed(1.0), Finished(2.0)]
        assert again.run_of_token("token-hash") == "r1"
        assert again.device_of_key("key-hash") == Device("r1", "hub")
        assert again.devices() == {Device("r1", "hub"): None}


def test_a_place_of_the_journal_is_written_once(store: Store) -> None:
    store.append("r1", 0, Resumed(1.0))
    with pytest.raises(StoreError, match="another process"):
        store.append("r1", 0, Resumed(2.0))
    assert store.events("r1") == [Resumed(1.0)]


def test_a_device_is_not_taken_over(store: Store) -> None:
    assert store.add_device(Device("r1", "hub"), "mine", {}, 1.0)
    assert not store.add_device(Device("r1", "hub"), "theirs", {}, 2.0)
    assert store.device_of_key("theirs") is None


def test_foreign_keys_hold(store: Store) -> None:
    with pytest.raises(IntegrityError):
        store.add_token("hash", "no-such-run")


def test_every_commit_is_synced(store: Store) -> None:
    with store._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    assert pragmas == wanted


def test_a_blob_is_named_by_its_bytes(store: Store) -> None:
    assert store.put(b"delta") == store.put(b"delta") == sha256(b"delta")
    assert store.read(sha256(b"delta")) == b"delta"
    assert [path.name for path in store.blobs.iterdir()] == [sha256(b"delta")]


def test_a_damaged_blob_is_not_read(store: Store) -> None:
    name = store.put(b"delta")
    store.blob_path(name).write_bytes(b"d3lta")
    with pytest.raises(OSError, match="is damaged"):
        store.read(name)


def test_what_a_killed_process_left_is_swept(store: Store) -> None:
    name = store.put(b"delta")
    (store.blobs / f"{name}.ab.tmp").write_bytes(b"del")
    sweep(store.blobs)
    assert [path.name for path in store.blobs.iterdir()] == [name]


def test_another_schema_version_is_a_clear_error(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection, connection:
        connection.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(StoreError, match="schema version 99, this smidgen knows 2"):
        Store(tmp_path)


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"not a database, whatever its name says" * 40)
    with pytest.raises(StoreError, match="cannot open the store"):
        Store(tmp_path)


def test_a_database_may_lie_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    with closing(Store(tmp_path / "store", url)) as store:
        store.add_run(RUN, "token-hash")
    assert not (tmp_path / "store" / DATABASE).exists()
