"""Stores that older smidgens wrote: all of it is there, and their runs go on to the same bytes.

`old_stores/` holds what commits 1cddb8f (schema 1) and 0129e93 (schema 2) wrote: a run that is
finished, and one in the middle of round 2, one of its two devices waited for. Both have a device
called hub. `news_adapter_at_the_end` is what the same old coordinator made of it.
"""

import base64
import fcntl
import json
import resource
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from coordinator.api.stores import open_store
from coordinator.serving.service import Service
from coordinator.storage.errors import StoreError
from coordinator.storage.figures import accuracies, pseudo_labels, rows
from coordinator.storage.migrations.upgrade import copy_of
from coordinator.storage.place import DATABASE
from coordinator.storage.rows.devices import devices
from coordinator.storage.rows.tokens import tokens
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.schema import METADATA
from coordinator.storage.status import status_of
from coordinator.storage.store import Store
from edge_client.errors import Failed
from edge_client.wire.figures import traffic_of
from tests.command_line import smidgen
from tests.coordinator.conftest import served
from tests.coordinator.devices import Device, ask_to_enrol, enrol

STORES = Path(__file__).parent / "old_stores"
BOTH = pytest.mark.parametrize("version", [1, 2])


def read(version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORES / f"schema-{version}.json").read_text())
    return found


def written(version: int, folder: Path) -> dict[str, Any]:
    """Put an old store into a folder; what else is known of it."""
    told = read(version)
    (folder / "blobs").mkdir(parents=True)
    for name, body in told["blobs"].items():
        (folder / "blobs" / name).write_bytes(base64.b64decode(body))
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.executescript("\n".join(told["sql"]))
    return told


@BOTH
def test_an_old_store_is_brought_up_to_date_after_a_copy(version: int, tmp_path: Path) -> None:
    told = written(version, tmp_path)
    with closing(Store(tmp_path, is_upgrading=True)) as store:
        assert {run.run_id for run in store.runs()} == set(told["runs"].values())
        with store.database.engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, METADATA) == []
    copy = copy_of(tmp_path / DATABASE)
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("SELECT version FROM schema_version").fetchall() == [(version,)]
        assert kept.execute("SELECT count(*) FROM devices").fetchall() == [(4,)]
    with closing(Store(tmp_path)) as again:
        assert len(devices(again.database)) == 4


@BOTH
def test_devices_keep_their_ids_but_where_two_runs_have_the_same(
    version: int, tmp_path: Path
) -> None:
    runs = written(version, tmp_path)["runs"]
    with closing(Store(tmp_path, is_upgrading=True)) as store:
        found = {device.device_id: device for device in devices(store.database)}
        # The one whose run is not finished keeps the id, which its seeds hang on.
        other = f"{runs['mail']}-hub"
        assert set(found) == {"attic", "hall-2", "hub", other}
        assert {name: one.all_tags["run"] for name, one in found.items()} == {
            "attic": "news",
            "hall-2": "mail",
            "hub": "news",
            other: "mail",
        }
        asked = {row["device_id"] for row in rows(store, runs["mail"])}
        assert asked == {"hall-2", other}
        chosen = [config_of(run).devices.tags for run in store.runs()]
        assert chosen == [{"run": "mail"}, {"run": "news"}]
        assert [token.tags for token in tokens(store.database)] == chosen


@BOTH
def test_old_reports_still_give_figures(version: int, tmp_path: Path) -> None:
    runs = written(version, tmp_path)["runs"]
    with closing(Store(tmp_path, is_upgrading=True)) as store:
        table = rows(store, runs["mail"])
        assert accuracies(table) == {0: 0.0, 1: 0.25} and pseudo_labels(table) == {1: 30}
        failed = [row["failure"] for row in table if row["outcome"] == "failed"]
        assert failed == ["training"]
        sent = traffic_of(table)
        assert sum(sent.bytes_of(row, "up") for row in table) > 0
        status = status_of(store, find_run(store, "mail"))
        assert status["phase"] == "finished"
        assert [one["last"]["outcome"] for one in status["devices"]] == ["done", "done"]
    told = smidgen("coordinator", "figures", "--store", str(tmp_path), "--run", "mail")
    assert told.exit_code == 0 and "25.0 %" in told.stdout


@BOTH
def test_an_old_run_goes_on_among_its_devices_to_the_same_bytes(
    version: int, tmp_path: Path
) -> None:
    told = written(version, tmp_path)
    news = told["runs"]["news"]
    with (
        closing(Store(tmp_path, is_upgrading=True)) as store,
        served(store) as (service, http),
    ):
        names = ("hub", "attic")
        back = [enrol(http, "", name, told["keys"]["news"][name]) for name in names]
        assert [device.device_id for device in back] == ["hub", "attic"]
        stranger = enrol(http, told["tokens"]["mail"], "new", "k" * 30)
        assert [terms.run_name for terms in stranger.join()] == []  # its run is finished
        work_through(service, news, back)
        assert service.run(news).state.adapter_sha256 == told["news_adapter_at_the_end"]


def work_through(service: Service, run_id: str, devices: list[Device]) -> None:
    for device in devices:
        assert [terms.run_id for terms in device.join()] == [run_id]
    while not service.run(run_id).state.is_finished:
        for device in devices:
            if work := device.next(0.2).work:
                device.do(work)


@BOTH
def test_a_device_of_a_finished_run_gets_its_adapter(version: int, tmp_path: Path) -> None:
    told = written(version, tmp_path)
    with closing(Store(tmp_path, is_upgrading=True)) as store, served(store) as (_, http):
        key = told["keys"]["mail"]["hub"]
        device = enrol(http, "", "whatever it says now", key)
        assert device.enrolled.name == f"{told['runs']['mail']}-hub"
        over = device.over()
        assert (over.run_name, over.rounds, over.devices) == ("mail", 1, 2)
        assert ask_to_enrol(http, "", "x", "k" * 30).status_code == 401


def test_only_serving_brings_a_store_up_to_date(tmp_path: Path) -> None:
    written(1, tmp_path)
    for command in ("status", "figures", "list"):
        done = smidgen("coordinator", command, "--store", str(tmp_path))
        assert done.exit_code == 2 and done.stderr.count("\n") == 1
        assert "written by an older smidgen (schema 0001, now 0008); start `smidgen" in done.stderr
    with pytest.raises(StoreError, match="older smidgen"):
        open_store(tmp_path)
    assert not copy_of(tmp_path / DATABASE).exists()


def test_a_store_that_an_older_coordinator_serves_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.storage.opening.UPGRADE_S", 0.5)
    written(1, tmp_path)
    with (tmp_path / "serve.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="another coordinator serves the store"):
            Store(tmp_path, is_upgrading=True)
    assert not copy_of(tmp_path / DATABASE).exists()


def test_a_store_that_is_opened_twice_at_once_is_copied_while_it_is_old(tmp_path: Path) -> None:
    written(1, tmp_path)
    with ThreadPoolExecutor() as pool, (tmp_path / "serve.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened = [pool.submit(Store, tmp_path, is_upgrading=True) for _ in range(2)]
        time.sleep(0.5)  # both have seen an old one
        fcntl.flock(lock, fcntl.LOCK_UN)
        for one in opened:
            one.result().close()
    with closing(sqlite3.connect(copy_of(tmp_path / DATABASE))) as kept:
        assert kept.execute("SELECT version FROM schema_version").fetchall() == [(1,)]


def test_a_copy_that_is_there_is_kept(tmp_path: Path) -> None:
    written(1, tmp_path)
    first = copy_of(tmp_path / DATABASE)
    first.write_bytes(b"of an earlier day")
    Store(tmp_path, is_upgrading=True).close()
    assert first.read_bytes() == b"of an earlier day"
    with closing(sqlite3.connect(f"{first}-2")) as kept:
        assert kept.execute("SELECT version FROM schema_version").fetchall() == [(1,)]


def test_a_store_without_room_for_the_copy_is_left_as_it_was(tmp_path: Path) -> None:
    written(1, tmp_path)
    length = (tmp_path / DATABASE).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length // 2, hard))
    try:
        with pytest.raises(Failed, match=r"before-0008 cannot be written: .*; let .* be free"):
            Store(tmp_path, is_upgrading=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        assert database.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
    assert not list(tmp_path.glob("*before*"))
    Store(tmp_path, is_upgrading=True).close()
    assert copy_of(tmp_path / DATABASE).exists()


def test_what_fails_halfway_leaves_the_old_store(tmp_path: Path) -> None:
    written(1, tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database, database:
        database.execute("UPDATE runs SET config = '{}'")
    with pytest.raises(KeyError):
        Store(tmp_path, is_upgrading=True)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        assert database.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        assert database.execute("SELECT count(*) FROM devices").fetchall() == [(4,)]
        names = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert "alembic_version" not in names and "memberships" not in names
