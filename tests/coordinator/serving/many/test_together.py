"""Three coordinators of one fleet, and devices that ask another one with each request."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sql

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.page.board import PageState
from smidgen.coordinator.rounds.events import Answered, LossTold, StepClosed, StepOpened
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report, Work
from tests.coordinator.conftest import serving
from tests.coordinator.devices import Device, ask_to_enrol, enrol, joined, key_of, wait_for
from tests.coordinator.serving.many.conftest import Many, Start

NAMES = ("a", "b", "c", "d")


def leaders(many: Many) -> list[int]:
    return [number for number, one in enumerate(many.services) if one.lead.is_here]


def work_of(device: Device) -> Work:
    """What a device is asked next; a poll may end before, where another process wrote of it."""
    end = time.monotonic() + 60
    while (work := device.next(5.0).work) is None:
        assert time.monotonic() < end
    return work


def test_a_run_by_three_gives_the_bytes_of_a_run_by_one(
    start: Start, config: RunConfig, tmp_path: Path
) -> None:
    many = start(3, rounds=4, min_clients=len(NAMES))
    devices = [joined(many.http, many.created.token, name) for name in NAMES]
    with ThreadPoolExecutor(len(devices)) as pool:
        assert list(pool.map(Device.until_finished, devices)) == [4 + 5] * len(NAMES)
    assert len(leaders(many)) == 1
    events = many.services[0].store.events(many.created.run_id)
    answers = [one.work_id for one in events if isinstance(one, Answered)]
    assert len(answers) == len(set(answers)) == 9 * len(NAMES)
    assert len([one for one in events if isinstance(one, StepOpened)]) == 9
    with closing(Store(tmp_path / "embedded")) as store:
        asked = replace(config, rounds=4, min_clients=len(NAMES))
        with serving(store, asked) as live:
            alone = live.join(*NAMES)
            with ThreadPoolExecutor(len(alone)) as pool:
                list(pool.map(Device.until_finished, alone))
        wanted = [one for one in store.events(live.run_id) if isinstance(one, StepClosed)]
    closed = [one for one in events if isinstance(one, StepClosed)]
    assert [one.adapter_sha256 for one in closed] == [one.adapter_sha256 for one in wanted]
    wait_for(lambda: len({one.run(many.created.run_id).seq for one in many.services}) == 1)
    states = [one.run(many.created.run_id).state for one in many.services]
    assert states[0] == states[1] == states[2] and states[0].is_finished


@pytest.mark.slow
def test_what_one_is_told_the_others_know_when_asked(start: Start) -> None:
    many = start(2, rounds=1, min_clients=2)
    first, second = many.clients
    for name in ("a", "b"):
        device = enrol(first, many.created.token, name)
        assert replace(device, http=second).next().terms is not None
        told = device.tell(many.created.run_id, Membership("joined"))
        assert told.json()["accepted"]
    other = replace(device, http=second)
    began_s = time.monotonic()
    work = work_of(other)  # asked by whichever leads
    assert time.monotonic() - began_s < 10.0
    other.report(Report(work.work_id, "done", 4, accuracy=0.5))
    assert device.report(Report(work.work_id, "done", 4, accuracy=0.5)).accepted


def test_the_same_update_at_two_counts_once_and_is_known_to_both(start: Start) -> None:
    many = start(2, rounds=1, min_clients=2)
    devices = [joined(many.http, many.created.token, name) for name in ("a", "b")]
    for device in devices:
        device.do(work_of(device))
    a = devices[0]
    work = work_of(a)
    body = a.update(work)
    with ThreadPoolExecutor(4) as pool:
        sent = [replace(a, http=http) for http in many.clients * 2]
        answers = list(pool.map(lambda one: one.put(work.work_id, body), sent))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert {answer.json()["accepted"] for answer in answers if answer.status_code == 200} == {True}
    events = many.services[1].store.events(many.created.run_id)
    mine = [one for one in events if isinstance(one, Answered) and one.work_id == work.work_id]
    assert len(mine) == 1
    assert {one.next().waiting is not None for one in sent} == {True}


@pytest.mark.slow
def test_the_same_loss_at_two_is_in_the_journal_once(start: Start) -> None:
    many = start(2, rounds=1, min_clients=1, learning=Learning(selection="utility"))
    a = joined(many.http, many.created.token, "a")
    a.do(work_of(a))
    work = work_of(a)
    assert a.put(work.work_id, a.update(work)).status_code == 200
    with ThreadPoolExecutor(4) as pool:
        sent = [replace(a, http=http) for http in many.clients * 4]
        told = Report(work.work_id, "done", 8, loss=1.0)
        assert all(one.accepted for one in pool.map(lambda one: one.report(told, 60.0), sent))
    events = many.services[0].store.events(many.created.run_id)
    assert [one for one in events if isinstance(one, LossTold)] == [LossTold(a.device_id, 1.0)]


@pytest.mark.slow
def test_a_client_that_starts_again_at_another_is_the_device(start: Start) -> None:
    many = start(2)
    key = key_of("a")
    polls = {"Authorization": f"Bearer {key}"}
    first, second = many.clients
    for life, at, other in (("one", first, second), ("two", second, first)):
        assert ask_to_enrol(at, many.created.token, "a", key, life=life).status_code == 200
        for http in (other, at):
            assert http.get(f"/v1/work?life={life}", headers=polls).status_code == 200
    assert second.get("/v1/work?life=one", headers=polls).status_code == 409


@pytest.mark.slow
def test_a_poll_of_another_life_asks_the_database_beside_the_event_loop(start: Start) -> None:
    many = start(1)
    (http,), (service,) = many.clients, many.services
    key = key_of("a")
    for life in ("one", "two"):
        assert ask_to_enrol(http, many.created.token, "a", key, life=life).status_code == 200
    asked: list[bool] = []

    def note(*_: object) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop()  # of this thread
            asked.append(True)

    sql.event.listen(service.store.database.engine, "before_cursor_execute", note)
    polls = {"Authorization": f"Bearer {key}"}
    assert http.get("/v1/work?life=one", headers=polls).status_code == 409
    assert asked == []


@pytest.mark.slow
def test_another_takes_the_lead_when_the_leader_stops(start: Start) -> None:
    many = start(3, rounds=1, min_clients=2)
    wait_for(lambda: len(leaders(many)) == 1)
    (before,) = leaders(many)
    many.services[before].lead.end()
    began_s = time.monotonic()
    wait_for(lambda: leaders(many) not in ([], [before]))
    assert time.monotonic() - began_s < 10.0
    devices = [joined(many.http, many.created.token, name) for name in ("a", "b")]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(Device.until_finished, devices))


@pytest.mark.slow
def test_a_poll_at_one_is_woken_by_what_another_writes(start: Start) -> None:
    many = start(2, rounds=1, min_clients=2)
    devices = [joined(many.http, many.created.token, name) for name in ("a", "b")]
    wait_for(lambda: len(leaders(many)) == 1)
    (leader,) = leaders(many)
    first, second = (
        replace(device, http=many.clients[place])
        for device, place in zip(devices, (1 - leader, leader), strict=True)
    )
    first.do(work_of(first))

    def next_training() -> float:
        while (given := first.next(50.0)).work is None:
            assert given.waiting is not None
        return time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(next_training)  # at the one that does not lead
        time.sleep(1.0)
        second.do(work_of(second))
        took_s = heard.result() - time.monotonic()
    assert took_s < 5.0


@pytest.mark.slow
def test_a_page_at_one_shows_what_was_answered_at_another(start: Start) -> None:
    many = start(2, rounds=1, min_clients=2)
    devices = [joined(many.clients[0], many.created.token, name) for name in ("a", "b")]
    board = PageState(many.services[1])

    def answers() -> int:
        board.update(many.services[1].now_s())
        told = [line for line in board.since(0, 0.0)[0].splitlines() if line.startswith("data: ")]
        parts = [json.loads(line[6:]) for line in told]
        return sum(one["answers"] for part in parts for one in part.get("rounds", ()))

    for number, device in enumerate(devices):
        device.do(work_of(device))
        assert answers() == number + 1
