"""One commit for many that come at the same time; what one of them does is its own affair."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from smidgen.coordinator.storage.database import Connection, Database, Together
from tests.coordinator.devices import wait_for

NUMBERS = sql.Table("numbers", sql.MetaData(), sql.Column("number", sql.Integer, primary_key=True))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{tmp_path / 'numbers.db'}")) as opened:
        NUMBERS.metadata.create_all(opened.engine)
        yield opened


def adding(number: int) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        connection.execute(sql.insert(NUMBERS), [{"number": number}])
        return number

    return work


def held(database: Database) -> list[int]:
    return [row["number"] for row in database.rows(sql.select(NUMBERS).order_by("number"))]


def test_those_that_come_while_it_is_busy_are_done_at_once() -> None:
    is_busy, may_go_on = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def do(asked: Sequence[int]) -> list[int]:
        seen.append(list(asked))
        is_busy.set()
        assert may_go_on.wait(90)
        return [2 * number for number in asked]

    together = Together(do)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(together, 0)
        assert is_busy.wait(90)
        others = [pool.submit(together, number) for number in range(1, 9)]
        wait_for(lambda: len(together) == 8)
        may_go_on.set()
        assert [one.result() for one in [first, *others]] == [2 * n for n in range(9)]
    assert [len(asked) for asked in seen] == [1, 8]


def test_an_error_reaches_everybody_that_was_there() -> None:
    def do(asked: Sequence[int]) -> list[int]:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        Together(do)(1)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=24))
def test_in_a_shared_transaction_each_happens_or_not_by_itself(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("shared")
    with closing(Database(f"sqlite:///{folder / 'numbers.db'}")) as database:
        NUMBERS.metadata.create_all(database.engine)
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(database.share, adding(number)) for number in numbers]
        done = [one.result() for one in asked if one.exception() is None]
        failed = [one.exception() for one in asked if one.exception() is not None]
        assert sorted(done) == sorted(set(numbers)) == held(database)
        assert len(failed) == len(numbers) - len(done)
        assert all(isinstance(error, IntegrityError) for error in failed)


def test_what_fails_leaves_nothing_behind(database: Database) -> None:
    def half(connection: Connection) -> None:
        adding(1)(connection)
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        database.share(half)
    assert held(database) == []


def test_many_that_wait_need_one_commit(database: Database) -> None:
    commits: list[object] = []
    sql.event.listen(database.engine, "commit", commits.append)
    together = database._together
    with ThreadPoolExecutor(8) as pool:
        with database.transaction():  # all of them have to wait
            asked = [pool.submit(database.share, adding(0))]
            wait_for(lambda: together._doing.locked() and len(together) == 0)
            asked += [pool.submit(database.share, adding(number)) for number in range(1, 8)]
            wait_for(lambda: len(together) == 7)
        assert sorted(one.result() for one in asked) == held(database) == list(range(8))
    assert len(commits) == 3  # our own, the first that came, the others
