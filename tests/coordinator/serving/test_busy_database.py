"""Somebody else holds the store's database: a backup, or a command that takes long."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.log import Troubles
from smidgen.coordinator.storage.credentials import insert_token
from smidgen.coordinator.storage.database import DATABASE
from smidgen.coordinator.storage.dialects import sqlite
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from tests.command_line import smidgen
from tests.coordinator.conftest import Live
from tests.coordinator.devices import ask_to_enrol, enrol, key_of

SAID = (
    "the store's database: database is locked; somebody else holds it for long, such as a backup; "
    "try again"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(one.replace("=10000", "=50") for one in sqlite.PRAGMAS)
    monkeypatch.setattr(sqlite, "PRAGMAS", found)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Somebody else writes for long."""
    with closing(sqlite3.connect(folder / DATABASE)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_who_finds_it_held_is_told_to_come_again(start: Callable[..., Live]) -> None:
    live = start()
    with held(live.store.folder):
        refused = ask_to_enrol(live.http, live.token, "a", key_of("a"))
    assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
    assert refused.json() == {"detail": "the coordinator's database is busy; try again"}
    assert enrol(live.http, live.token, "a").name == "a"


@pytest.mark.parametrize(
    "command",
    [
        ("tokens", "new"),
        ("operators", "new"),
        ("pause",),
        ("create", "--task", "agnews", "--name", "other"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_finds_it_held_says_so_in_a_line_without_what_it_was_to_write(
    tmp_path: Path, config: RunConfig, command: tuple[str, ...]
) -> None:
    with closing(Store(tmp_path)) as store:
        create_run(store, config, time.time())
    with held(tmp_path):
        done = smidgen("coordinator", *command, "--store", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"smidgen coordinator: {SAID}\n"


def test_the_log_says_so_in_a_line_without_what_was_to_be_written(
    tmp_path: Path, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(Store(tmp_path)) as store, held(tmp_path), Troubles().trying("mail"):
        create_run(store, config, time.time())
    (told,) = caplog.records
    assert told.getMessage() == f"mail: stands still; trying again each second: {SAID}"
    assert not told.exc_info


def test_no_other_error_of_it_tells_what_was_to_be_written(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        _, added = insert_token("secret", time.time())
        store.database.write(added)
        with pytest.raises(IntegrityError) as caught:
            store.database.write(added)
    assert "tokens" in str(caught.value) and "parameters hidden" in str(caught.value)
