"""Somebody else holds the store's database: a backup, or a command that takes long."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from coordinator.storage.dialects import sqlite
from coordinator.storage.place import DATABASE
from tests.coordinator.conftest import Live
from tests.coordinator.devices import ask_to_enrol, enrol, key_of


def test_who_finds_it_held_is_told_to_come_again(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple(one.replace("=10000", "=50") for one in sqlite.PRAGMAS)
    monkeypatch.setattr(sqlite, "PRAGMAS", quick)
    live = start()
    with closing(sqlite3.connect(live.store.folder / DATABASE)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = ask_to_enrol(live.http, live.token, "a", key_of("a"))
        other.execute("ROLLBACK")
    assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
    assert refused.json() == {"detail": "the coordinator's database is busy; try again"}
    assert enrol(live.http, live.token, "a").name == "a"
