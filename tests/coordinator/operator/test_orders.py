"""Orders to a run that is served: paused, gone on, stopped, extended."""

import time
from collections.abc import Callable

import pytest

from smidgen.coordinator.commands.status import said_of
from smidgen.coordinator.serving.executor import carry_out
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.runs import add_order, open_orders, orders_of, status_of
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for
from tests.coordinator.operator.operators import person

Start = Callable[..., Live]


def phase(live: Live) -> str:
    return live.service.run(live.run_id).state.phase


def test_a_paused_run_gives_no_work_and_goes_on_where_it_stood(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    asked, boss = device.work(), person(live.http, live.store)
    order = boss.post(f"/runs/{live.run_id}/pause")
    wait_for(lambda: phase(live) == "paused")
    waiting = device.waiting()
    assert (waiting.phase, waiting.run_name) == ("paused", "mail")
    boss.post(f"/runs/{live.run_id}/resume")
    assert device.work() == asked
    done = boss.get(f"/runs/{live.run_id}/orders")["orders"]
    assert [one["kind"] for one in done] == ["resume", "pause"]
    assert done[1]["order_id"] == order["order_id"] and done[1]["done_at_s"] is not None


def test_an_answer_in_a_pause_counts(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    work, boss = device.work(), person(live.http, live.store)
    boss.post(f"/runs/{live.run_id}/pause")
    wait_for(lambda: phase(live) == "paused")
    device.do(work)
    assert device.waiting().phase == "paused"
    boss.post(f"/runs/{live.run_id}/resume")
    assert device.work().kind == "train"


def test_a_stopped_run_sends_its_devices_home(start: Start) -> None:
    live = start(min_clients=1, rounds=50)
    (device,) = live.join("a")
    device.do(device.work())
    person(live.http, live.store).post(f"/runs/{live.run_id}/stop")
    wait_for(lambda: phase(live) == "finished")
    over = device.over()
    assert (over.ended, over.rounds) == ("stopped", 0)


def test_everybody_is_told_that_patience_ran_out(start: Start) -> None:
    live = start(min_clients=1, rounds=9, patience=2)
    (device,) = live.join("a")
    while (given := device.next(5.0)).over is None:
        assert given.work is not None
        device.do(given.work)  # it evaluates as 0, 1, 2, 3 quarters, and then no better than one
    assert (given.over.ended, given.over.rounds) == ("patience", 6)
    boss = person(live.http, live.store)
    told = boss.get(f"/runs/{live.run_id}")
    assert (told["ended"], told["is_stopped"], told["rounds"]) == ("patience", False, 9)
    said = list(said_of(status_of(live.store, live.store.runs()[0]), time.time()))
    assert said[0].endswith("finished, round 6 of 9: its evaluations got no better")
    assert said[1] == "no improvement on 100.0% in 2 evaluations"


def test_a_finished_run_that_is_extended_asks_its_devices_again(start: Start) -> None:
    live = start(min_clients=1, rounds=1)
    (device,) = live.join("a")
    device.until_finished()
    boss = person(live.http, live.store)
    boss.post(f"/runs/{live.run_id}/extend", {"rounds": 2})
    wait_for(lambda: live.service.run(live.run_id).rounds == 2)
    assert device.until_finished() == 2
    told = boss.get(f"/runs/{live.run_id}")
    assert (told["phase"], told["round_index"], told["rounds"]) == ("finished", 2, 2)
    assert told["ended"] == "rounds"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("resume", None, "not paused"),
        ("extend", {"rounds": 1}, "it has 2 rounds; 1 came"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused(
    start: Start, path: str, body: dict[str, int] | None, said: str
) -> None:
    live = start()
    refused = person(live.http, live.store).tell(f"/runs/{live.run_id}/{path}", body)
    assert refused.status_code == 409 and said in refused.json()["detail"]


def test_an_order_is_judged_by_what_those_before_it_will_have_done(start: Start) -> None:
    live = start()
    run = live.service.run(live.run_id).run
    live.service._ticking.acquire()  # as a server that has not looked yet
    try:
        add_order(live.store, run, "pause", None, time.time())
        with pytest.raises(StoreError, match="paused already"):
            add_order(live.store, run, "pause", None, time.time())
        add_order(live.store, run, "resume", None, time.time())
    finally:
        live.service._ticking.release()
    wait_for(lambda: not open_orders(live.store))
    told = orders_of(live.store, live.run_id, None, 9)
    assert [one.refused for one in told] == [None, None] and phase(live) == "waiting"


def test_an_order_that_no_longer_fits_says_so_and_is_done(start: Start) -> None:
    live = start()
    run = live.service.run(live.run_id).run
    live.service._ticking.acquire()
    try:
        add_order(live.store, run, "stop", None, time.time())
        ledger = Ledger(live.store, time.time())
        assert len([*carry_out(live.store, ledger, time.time())]) == 1
        again = live.store.database  # as if a crash had left it open
        from smidgen.coordinator.storage.schema import ORDERS

        again.write(ORDERS.update().values(done_at_s=None))
        assert [*carry_out(live.store, ledger, time.time())] == []
    finally:
        live.service._ticking.release()
    (order,) = orders_of(live.store, live.run_id, None, 9)
    assert order.done_at_s is not None and "it is stopped" in (order.refused or "")
