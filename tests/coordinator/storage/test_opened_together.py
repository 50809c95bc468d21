"""Several that open one SQLite database in the same moment."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sql

from smidgen.coordinator.storage.database import Database, DatabaseBusy
from smidgen.coordinator.storage.dialects import sqlite
from smidgen.coordinator.storage.schema import STORE
from smidgen.coordinator.storage.store import Store


def test_the_write_ahead_log_is_turned_on_by_many_at_once(tmp_path: Path) -> None:
    """Without waiting one in twenty openings of a database without one failed."""
    count = 4

    def opened(file: Path, together: Barrier) -> str:
        there = Database(f"sqlite:///{file}")
        together.wait()
        with there.reading() as connection:
            mode = connection.scalar(sql.text("PRAGMA journal_mode"))
        there.close()
        return str(mode)

    with ThreadPoolExecutor(count) as pool:
        for number in range(100):
            file, together = tmp_path / f"{number}.db", Barrier(count)
            with closing(sqlite3.connect(file)) as older, older:
                older.execute("CREATE TABLE runs (run_id TEXT)")
            modes = [pool.submit(opened, file, together) for _ in range(count)]
            assert [one.result() for one in modes] == ["wal"] * count


def test_a_store_that_is_not_there_yet_is_made_once(tmp_path: Path) -> None:
    """`coordinator serve` and `coordinator create`, started by one script."""
    count = 3

    def opened(folder: Path, together: Barrier) -> list[dict[str, object]]:
        together.wait()
        store = Store(folder)
        rows = [dict(row) for row in store.database.rows(sql.select(STORE))]
        store.close()
        return rows

    with ThreadPoolExecutor(count) as pool:
        for number in range(15):
            together = Barrier(count)
            stores = [pool.submit(opened, tmp_path / f"{number}", together) for _ in range(count)]
            assert [len(one.result()) for one in stores] == [1] * count


def test_one_who_keeps_it_is_waited_for_as_long_as_a_write_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tuple(one.replace("=10000", "=50") for one in sqlite.PRAGMAS)
    monkeypatch.setattr(sqlite, "PRAGMAS", quick)
    file = tmp_path / "kept.db"
    with closing(sqlite3.connect(file)) as keeper:
        keeper.execute("CREATE TABLE runs (run_id TEXT)")
        keeper.commit()
        keeper.execute("BEGIN EXCLUSIVE")
        late = Database(f"sqlite:///{file}")
        with pytest.raises(DatabaseBusy, match="locked"), late.reading():
            pass
        keeper.rollback()
        with late.reading() as connection:
            assert connection.scalar(sql.text("PRAGMA journal_mode")) == "wal"
        late.close()
