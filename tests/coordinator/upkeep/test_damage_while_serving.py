"""Files that are damaged under a coordinator that serves: told once, and no device fails for it."""

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smidgen.coordinator.storage.database import DATABASE
from tests.breadth import first_fast
from tests.coordinator.conftest import Live
from tests.coordinator.devices import ask_to_enrol, key_of, wait_for


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    assert not [record for record in caplog.records if record.exc_info]
    return [text for text in caplog.messages if words in text]


def test_a_run_stands_still_while_its_adapter_is_damaged(
    start: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = start(min_clients=1)
    (device,) = live.join("a")
    work = device.work()
    path = live.store.blobs.path(work.adapter_sha256)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    for _ in range(2):
        answer = live.http.get(f"/v1/adapters/{work.adapter_sha256}", headers=device.headers)
    assert len(said(caplog, f"blob {path} is damaged")) == 1
    assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
    assert "damaged" in answer.json()["detail"] and answer.text.count("\n") == 0
    device.do(work)  # an evaluation; training is to open now
    wait_for(lambda: bool(said(caplog, "stands still")))
    time.sleep(0.4)  # several ticks
    assert len(said(caplog, "stands still")) == 1 and said(caplog, f"blob {path} is damaged")
    assert device.next().work is None
    path.write_bytes(sound)
    assert device.work().kind == "train"


def test_a_database_that_is_overwritten_gives_no_traceback_per_request(
    start: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "smidgen.coordinator")
    caplog.set_level(logging.WARNING, "httpx")
    live = start(min_clients=1)
    live.join("a")
    for name in (DATABASE, f"{DATABASE}-wal"):
        path = live.store.folder / name
        with path.open("r+b") as file:
            file.write(b"\xa5" * path.stat().st_size)
    damaged = [f"a{n}" for n in range(200)]  # until it is looked at

    told = []

    def is_noticed() -> bool:
        name = damaged.pop()
        told.append(ask_to_enrol(live.http, live.token, name, key_of(name)))
        return told[-1].status_code == 503

    wait_for(is_noticed)
    wait_for(lambda: bool(said(caplog, "the database: stands still")))
    told = [ask_to_enrol(live.http, live.token, f"b{n}", key_of(f"b{n}")) for n in range(8)]
    assert {answer.status_code for answer in told} == {503}
    assert {one.json()["detail"] for one in told if one.status_code == 503} == {
        "the coordinator's store is damaged; try again once its operator has restored it"
    }
    wait_for(lambda: bool(said(caplog, "stands still")))
    before = len(caplog.records)
    for n in range(8):
        ask_to_enrol(live.http, live.token, f"c{n}", key_of(f"c{n}"))
    time.sleep(0.4)
    assert len(caplog.records) - before <= 3  # what other parts of a tick had yet to say


def replaced(database: Path) -> None:
    copy = database.with_name("copy")
    shutil.copy(database, copy)
    copy.replace(database)


def cut(database: Path) -> None:
    with database.open("r+b") as file:
        file.truncate(database.stat().st_size // 2)


def without_its_log(database: Path) -> None:
    database.with_name(f"{database.name}-wal").unlink()


@pytest.mark.parametrize("damage", first_fast([replaced, cut, without_its_log, Path.unlink]))
def test_a_database_that_is_not_the_file_it_was_is_noticed_without_being_read(
    start: Callable[..., Live],
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
) -> None:
    live = start(min_clients=1)
    live.join("a")
    damage(live.store.folder / DATABASE)
    wait_for(lambda: bool(said(caplog, "the database: stands still")))
    answer = ask_to_enrol(live.http, live.token, "b", key_of("b"))
    assert answer.status_code == 503 and "damaged" in answer.json()["detail"]
    time.sleep(0.4)  # several ticks
    assert len(said(caplog, "the database: stands still")) == 1


def test_looking_takes_no_lock_from_the_database(
    start: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    live = start(min_clients=1)
    live.join("a")
    time.sleep(0.4)  # it has been looked at
    log = live.store.folder / f"{DATABASE}-wal"
    before = log.stat().st_ino
    # The last process that leaves a database deletes its log; this one is not the last.
    visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) "
    visit += "FROM devices').fetchall(); c.close()"
    database = str(live.store.folder / DATABASE)
    subprocess.run([sys.executable, "-c", visit, database], check=True, timeout=60)
    assert log.stat().st_ino == before
    time.sleep(0.4)
    assert not said(caplog, "stands still")
