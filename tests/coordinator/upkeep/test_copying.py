from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from smidgen.coordinator.api.keeping import backup
from smidgen.coordinator.api.serve import serve
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.database import DATABASE
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.client.connection import http_client, nobody
from smidgen.edge_client.errors import Failed, WrongInput
from tests.command_line import smidgen
from tests.coordinator.devices import Device, joined, wait_for
from tests.coordinator.upkeep.stores import filled


def test_a_backup_is_a_store_that_goes_on_where_it_was_taken(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        run = filled(store, "mail", rounds=3, devices=2, open_updates=1)
        found = backup(tmp_path / "store", tmp_path / "copy")
        assert (found.runs, found.events) == (1, len(store.events(run.run_id)))
    assert smidgen("coordinator", "verify", "--store", str(tmp_path / "copy")).exit_code == 0
    with closing(Store(tmp_path / "copy")) as copy:
        assert copy.read(run.updates[-1]) and copy.read(run.adapters[-1])
    with serve(tmp_path / "copy", port=0) as server:
        assert server.runs()[0].phase == "train"


def test_a_backup_holds_certificates_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    made = smidgen("coordinator", "init", "--store", str(tmp_path / "store"), "--host", "localhost")
    assert made.exit_code == 0, made.output
    out = tmp_path / "there" / "copy"
    done = smidgen("coordinator", "backup", "--store", str(tmp_path / "store"), "--out", str(out))
    assert done.exit_code == 0, done.output
    assert {path.name for path in (out / "tls").iterdir()} >= {"ca.key", "server.pem"}
    assert {path.stat().st_mode & 0o077 for path in (out, *out.rglob("*"))} == {0}


def test_a_damaged_store_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        run = filled(store, "mail", rounds=2, devices=2)
        store.blobs.path(run.adapters[-1]).write_bytes(b"else")
    with pytest.raises(Failed, match=r"no backup was written: .*damaged"):
        backup(tmp_path / "store", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_backup_does_not_take_the_folder_away_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path / "store").close()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(WrongInput, match=r"--out \. is the current folder"):
        backup(tmp_path / "store", ".")
    assert (tmp_path / "here").samefile(".")


def test_a_backup_goes_over_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    for name in ("copy", "link", "store"):
        with pytest.raises(WrongInput, match="a new or an empty folder"):
            backup(tmp_path / "store", tmp_path / name)
    with pytest.raises(WrongInput, match="no store"):
        backup(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "copy" / DATABASE).exists()


def test_a_run_goes_on_from_a_backup_and_its_devices_follow(
    tmp_path: Path, config: RunConfig
) -> None:
    told = replace(config, rounds=3, min_clients=2)
    store, copy, out = tmp_path / "store", tmp_path / "copy", tmp_path / "back"
    with serve(store, port=0, run=told) as server, http_client(server.url, nobody()) as http:
        assert server.created is not None
        devices = [joined(http, server.created.token, name) for name in ("a", "b")]
        stop = Event()
        busy = [Thread(target=work_on, args=(device, stop)) for device in devices]
        for thread in busy:
            thread.start()
        wait_for(lambda: server.runs()[0].round_index >= 1, 60)
        done = smidgen("coordinator", "backup", "--store", str(store), "--out", str(copy))
        assert done.exit_code == 0, done.output
        wait_for(lambda: server.runs()[0].round_index >= 2, 60)
        stop.set()
        for thread in busy:
            thread.join()
    copy.rename(out)
    assert smidgen("coordinator", "verify", "--store", str(out)).exit_code == 0
    with serve(out, port=0) as server, http_client(server.url, nobody()) as http:
        back = [replace(device, http=http) for device in devices]
        with ThreadPoolExecutor() as pool:
            assert all(pool.map(lambda device: device.until_finished(60.0), back))
        assert server.runs()[0].is_finished
    assert smidgen("coordinator", "verify", "--store", str(out)).exit_code == 0


def work_on(device: Device, stop: Event) -> None:
    while not stop.is_set():
        if work := device.next(0.5).work:
            device.do(work)
