"""Who is let into the fleet, and under which name; the cost does not grow with the fleet."""

import itertools
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import sqlalchemy as sql

from smidgen.coordinator.fleet.devices import enrol
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.storage import credentials as token_rows
from smidgen.coordinator.storage.credentials import insert_token, tokens
from smidgen.coordinator.storage.devices import Device, devices, revoke
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol, device_id_of, draw_key
from smidgen.edge_client.wire.messages import PROTOCOL
from tests.coordinator.devices import key_of

TOKEN = "s" * 30
FACTS = DeviceFacts("test", 1, 1 << 30, "3.11", "0")


def token(store: Store, **bounds: Any) -> str:
    """Add a token; its id."""
    token_id, statement = insert_token(TOKEN, 0.0, **bounds)
    store.database.write(statement)
    return token_id


def come(store: Store, name: str, key: str = "", now_s: float = 1.0, **more: Any) -> Device:
    said = {"token": TOKEN} | more
    return enrol(store, Enrol(PROTOCOL, name, FACTS, **said), key or draw_key(), now_s)


def test_an_enrolment_that_is_repeated_is_the_same_device(store: Store) -> None:
    token(store, uses=1)
    key = draw_key()
    first = come(store, "pi", key)
    again = come(store, "pi", key, now_s=2.0, tags={"site": "hall"}, token="")
    assert first.device_id == again.device_id == device_id_of(key)
    assert again.name == "pi" and again.started_at_s > first.started_at_s
    assert again.own_tags == {"site": "hall"}
    assert len(devices(store.database)) == 1 and tokens(store.database)[0].used == 1


def test_a_life_is_newer_than_the_last_one_whatever_the_clock_says(store: Store) -> None:
    token(store)
    key = draw_key()
    starts = [come(store, "pi", key, now_s).started_at_s for now_s in (9.0, 9.0, 3.0)]
    assert starts == sorted(set(starts))


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (["pi", "pi", "pi"], ["pi", "pi-2", "pi-3"]),
        (["pi-3", "pi", "pi", "pi-2"], ["pi-3", "pi", "pi-4", "pi-2"]),
        (["pi-1", "pi", "pi-1"], ["pi-1", "pi", "pi-1-2"]),
        (["pi-02", "pi", "pi-02"], ["pi-02", "pi", "pi-02-2"]),
        (["1", "1-2", "a b", "a b"], ["1", "1-2", "a b", "a b-2"]),
        (["x-999999", "x-999999"], ["x-999999", "x-1000000"]),
    ],
)
def test_equal_names_get_numbers(store: Store, asked: list[str], given: list[str]) -> None:
    token(store)
    assert [come(store, name).name for name in asked] == given


def test_a_number_that_somebody_chose_as_a_name_is_no_trap(store: Store) -> None:
    token(store)
    names = [come(store, name).name for name in ("x-1000000", "x-999999", "x-999999")]
    assert names[:2] == ["x-1000000", "x-999999"] and names[2].startswith("x-999999-d")


@pytest.mark.slow
def test_the_thousandth_device_of_a_name_costs_as_many_statements_as_the_second(
    store: Store,
) -> None:
    token(store)
    counted: list[str] = []
    sql.event.listen(
        store.database.engine, "before_cursor_execute", lambda *said: counted.append(said[2])
    )
    costs = []
    for _ in range(300):
        counted.clear()
        come(store, "raspberrypi")
        costs.append(len(counted))
    assert set(costs[1:]) == {costs[1]} and costs[1] <= 12
    plans = explained(store, "SELECT max(number) FROM devices WHERE stem = 'raspberrypi'")
    assert "USING COVERING INDEX ix_devices_stem_number" in plans


def explained(store: Store, statement: str) -> str:
    with store.database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}")
        return " ".join(row[3] for row in rows)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"expires_at_s": 1.0}, "has expired"),
        ({"uses": 0}, "has let in its 0 devices"),
    ],
)
def test_a_token_that_lets_nobody_in_says_why(
    store: Store, bounds: dict[str, Any], said: str
) -> None:
    token(store, **bounds)
    with pytest.raises(Refusal, match=f"this enrolment token {said}") as caught:
        come(store, "pi")
    assert caught.value.status == 401 and devices(store.database) == []


def test_a_token_counts_its_devices_and_no_refusal(store: Store) -> None:
    token(store, uses=2)
    assert [come(store, "pi").name, come(store, "pi").name] == ["pi", "pi-2"]
    for _ in range(2):
        with pytest.raises(Refusal, match="has let in its 2 devices"):
            come(store, "pi")
    assert tokens(store.database)[0].used == 2


def test_a_wrong_token_costs_a_look_and_never_a_write(store: Store) -> None:
    token(store)
    for number in range(20):
        come(store, f"d{number}")
    counts = []
    for number in range(3):
        seen: list[str] = []

        def note(_c: Any, _u: Any, statement: str, *_: Any, seen: list[str] = seen) -> None:
            seen.append(statement)

        sql.event.listen(store.database.engine, "before_cursor_execute", note)
        with store.database.transaction():  # nobody waits for who writes
            with pytest.raises(Refusal):
                come(store, f"x{number}", token="w" * 40)
            sql.event.remove(store.database.engine, "before_cursor_execute", note)
        counts.append(len(seen))
        assert all(one.startswith("SELECT") for one in seen)
    assert counts == [2, 2, 2]  # the key and the token, each by its index


def test_a_token_s_last_use_is_counted_once_whoever_looked_before(store: Store) -> None:
    token_id = token(store, uses=1)
    with store.database.transaction() as connection:
        assert token_rows.spend(connection, token_id)
        assert not token_rows.spend(connection, token_id)
    assert tokens(store.database)[0].used == 1


def test_a_revoked_token_lets_nobody_in_but_keeps_who_came(store: Store) -> None:
    token_id = token(store)
    key = draw_key()
    come(store, "pi", key)
    token_rows.revoke(store.database, token_id, 1.0)
    with pytest.raises(Refusal, match="was revoked"):
        come(store, "pi")
    assert come(store, "pi", key).name == "pi"


def test_a_revoked_device_does_not_come_back(store: Store) -> None:
    token(store)
    key = draw_key()
    device = come(store, "pi", key)
    revoke(store.database, device.device_id, 2.0)
    with pytest.raises(Refusal, match="has revoked this device") as caught:
        come(store, "pi", key)
    assert caught.value.status == 401


@pytest.mark.parametrize("key", [None, "", "short", "k" * 201])
def test_a_key_is_long_enough_and_not_too_long(store: Store, key: str | None) -> None:
    token(store)
    with pytest.raises(Refusal, match="a device's key is expected"):
        enrol(store, Enrol(PROTOCOL, "pi", FACTS, TOKEN), key, 1.0)


def test_another_protocol_and_an_unknown_token_are_refused(store: Store) -> None:
    token(store)
    with pytest.raises(Refusal, match="protocol 4; this coordinator speaks 14: install the same"):
        enrol(store, Enrol(4, "pi", FACTS, TOKEN), key_of("pi"), 1.0)
    with pytest.raises(Refusal, match="token is not known; ask the operator for one"):
        come(store, "pi", token="wrong")


def test_a_token_s_tags_are_the_operator_s_and_win(store: Store) -> None:
    token(store, tags={"site": "hall"})
    device = come(store, "pi", tags={"site": "attic", "language": "en"})
    assert device.all_tags == {"site": "hall", "language": "en"}


def test_facts_of_any_length_are_not_stored() -> None:
    with pytest.raises(WrongInput, match="facts: board: at most 200"):
        replace(FACTS, board="x" * 201)
    with pytest.raises(WrongInput, match="facts: memory_bytes: 0 to"):
        replace(FACTS, memory_bytes=-1)


def cost_s(store: Store) -> float:
    """Processor time of one more enrolment; what it waits for the disk and for others is none."""
    began_s = time.thread_time()
    come(store, "raspberrypi")
    return time.thread_time() - began_s


def steps(store: Store) -> int:
    """Steps of SQLite's machine that one more enrolment takes: the same however busy we are."""
    count = itertools.count()

    def watch(connection: sqlite3.Connection, *_: object) -> None:
        connection.set_progress_handler(lambda: bool(next(count) < 0), 1)

    sql.event.listen(store.database.engine, "checkout", watch)
    come(store, "raspberrypi")
    sql.event.remove(store.database.engine, "checkout", watch)
    return next(count)


@pytest.mark.slow
def test_enrolling_costs_the_same_after_two_thousand_of_a_name(
    store: Store, tmp_path: Path
) -> None:
    token(store)
    for _ in range(2000):
        come(store, "raspberrypi")
    with closing(Store(tmp_path / "young")) as young:
        token(young)
        # Turn by turn, so that whatever slows the machine down meets both alike.
        costs = [(cost_s(young), cost_s(store)) for _ in range(200)]
        early_s, late_s = (median(each) for each in zip(*costs, strict=True))
        assert late_s < 2 * early_s, f"{late_s:.6f} s each after 2000, {early_s:.6f} s at first"
        assert steps(store) < 1.1 * steps(young)
