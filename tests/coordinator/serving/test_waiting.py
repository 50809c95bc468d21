"""What a coordinator says: the terms before joining, what a run waits for, and how it ended."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from smidgen.coordinator.serving.device_messages import MOST_ROUNDS, base_name_of, thinned
from smidgen.coordinator.storage.devices import revoke
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Over, Receipt, Report, decode, encode
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for

Start = Callable[..., Live]


def test_a_device_hears_the_terms_before_it_joins(start: Start) -> None:
    live = start(rounds=7)
    (device,) = live.enrol("a")
    terms, config = device.next().terms, live.service.run(live.run_id).config
    assert terms is not None
    assert (terms.run_name, terms.rounds, terms.min_clients) == ("mail", 7, 2)
    assert (terms.task, terms.adapter_spec, terms.training) == (
        config.task,
        config.adapter,
        config.training,
    )
    assert live.service.alive(live.run_id, time.time()) == set()
    assert device.join() == [terms]


def test_of_a_folder_on_the_server_devices_are_told_the_last_part(
    start: Start, tiny_base: Base
) -> None:
    (device,) = start().enrol("a")
    assert [terms.base_name for terms in device.join()] == [f"./{tiny_base.folder.name}"]


def test_a_relative_folder_is_not_told_as_a_name_of_the_hub(start: Start) -> None:
    served = start()
    live = served.service.run(served.run_id)
    for named, loaded_as, told in (
        ("packs/large-4", "org/large", "./large-4"),
        ("models/base", "./base", "./base"),
        ("base", "./base", "./base"),
        ("/srv/models/base", "./base", "./base"),
        ("org/base", "org/base", "org/base"),
        ("embedded", "embedded", "embedded"),
    ):
        run, config = replace(live.run, base_reference=loaded_as), replace(live.config, base=named)
        assert base_name_of(replace(live, run=run, config=config)) == told


def test_a_lone_device_is_told_that_one_more_is_needed(start: Start) -> None:
    (device,) = start().join("a")
    waiting = device.waiting()
    assert (waiting.phase, waiting.missing, waiting.asked) == ("waiting", 1, 2)
    assert waiting.round_index == 1 and waiting.closes_in_s is None


def test_who_has_answered_is_told_for_how_many_the_step_waits(start: Start) -> None:
    a, _ = start(deadline_s=300.0).join("a", "b")
    a.do(a.work())
    waiting = a.waiting()
    assert (waiting.phase, waiting.missing, waiting.asked) == ("evaluate", 1, 2)
    assert waiting.closes_in_s is not None and 200 < waiting.closes_in_s <= 300
    assert waiting.names == ()


def test_a_receipt_brings_the_next_work_once_it_is_there(start: Start) -> None:
    a, b = start().join("a", "b")
    done = Report(a.work().work_id, "done", 4, accuracy=0.5)
    with ThreadPoolExecutor(1) as pool:
        receipt = pool.submit(a.report, done, wait_s=50.0)
        time.sleep(0.3)
        assert not receipt.done()
        b.do(b.work())
        given = receipt.result(60).next
    assert given is not None and given.work is not None and given.work.kind == "train"
    assert a.work() == given.work
    assert a.report(done).next is None  # who does not ask hears what older clients hear


def test_a_device_that_is_revoked_while_its_receipt_waits_has_the_receipt_alone(
    start: Start,
) -> None:
    live = start()
    a, _ = live.join("a", "b")
    done = Report(a.work().work_id, "done", 4, accuracy=0.5)
    with ThreadPoolExecutor(1) as pool:
        receipt = pool.submit(a.report, done, wait_s=50.0)
        time.sleep(0.3)
        revoke(live.store.database, a.device_id, time.time())
        assert receipt.result(20) == Receipt(True)
    assert a.poll().status_code == 401


def test_names_are_told_where_the_owner_says_so(start: Start) -> None:
    a, _ = start(tell_names=True).join("hall", "kitchen")
    a.do(a.work())
    assert a.waiting().names == ("kitchen",)


def test_a_device_that_left_is_not_waited_for_and_comes_back_in_its_next_life(
    start: Start,
) -> None:
    live = start(rounds=2)
    a, b = live.join("a", "b")
    a.do(a.work())
    gone = Report(b.work().work_id, "failed", failure="texts", is_leaving=True)
    b.report(gone)
    assert a.work().kind == "train"
    assert live.service.run(live.run_id).state.left == {b.device_id: "texts"}
    assert b.waiting().phase == "idle"
    live.join("b")
    assert live.service.run(live.run_id).state.left == {}
    a.do(a.work())
    assert (a.work().kind, b.work().kind) == ("evaluate", "evaluate")


@pytest.mark.slow
def test_the_log_names_who_is_asked_who_answers_and_who_is_missing(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = start(rounds=1, deadline_s=4.0)
    (a,) = live.enrol("hall")
    wait_for(lambda: "mail: waiting for 2 more devices (--min-clients 2)" in caplog.text)
    a.join()
    wait_for(lambda: "mail: waiting for 1 more device (--min-clients 2); here: hall" in caplog.text)
    live.join("kitchen")
    a.do(a.work())
    a.do(a.work(wait_s=20.0))
    wait_for(lambda: "round 1 of 1, training closed" in caplog.text)
    for line in (
        "mail: before round 1, evaluation: asked hall, kitchen; closes in 4 s at most",
        "; waiting for kitchen",
        "1 of 2 done",
        "no answer from kitchen",
    ):
        assert line in caplog.text, line
    assert "accuracy 0.000 on 4 texts" in caplog.text


@pytest.mark.parametrize(
    ("settings", "more", "said"),
    [
        (
            {"task": Task("drugs", ("Drug",), kind="tagging"), "adapter": "lora:2+head"},
            {"entities": Entities((4,), (4,), (2,), 3, 5)},
            "1 of 1 done, F1 0.500 on 4 entities",
        ),
        (
            {"task": Task("notes", kind="mlm")},
            {},
            "1 of 1 done, accuracy 0.900 on 50 masked words, perplexity 7.39",
        ),
    ],
)
def test_the_log_tells_what_an_evaluation_of_each_kind_of_task_found(
    start: Start,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    more: dict[str, Any],
    said: str,
) -> None:
    caplog.set_level(logging.INFO)
    (device,) = start(min_clients=1, **settings).join("a")
    device.report(Report(device.work().work_id, "done", 50, 2.0, 0.9, labelled=1, **more))
    wait_for(lambda: said in caplog.text)


def test_the_log_says_why_a_device_failed_and_that_it_left(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    _, b = start(rounds=1).join("a", "b")
    b.report(Report(b.work().work_id, "failed", failure="budget", is_leaving=True))
    assert "no plan fits the device's memory budget; it has left" in caplog.text


def test_the_end_is_told_with_the_adapter_and_how_it_went(start: Start) -> None:
    live = start(rounds=2, min_clients=1)
    (device,) = live.enrol("a")
    device.join()
    while (given := device.next(10.0)).work:
        device.do(given.work)
    over = given.over
    assert over is not None and (over.run_id, over.run_name) == (live.run_id, "mail")
    state = live.service.run(live.run_id).state
    assert (over.adapter_sha256, over.rounds, over.devices) == (state.adapter_sha256, 2, 1)
    assert over.accuracies == {0: 0.0, 1: 0.25, 2: 0.5}
    path = f"/v1/adapters/{over.adapter_sha256}"
    assert live.http.get(path, headers=device.headers).is_success


def test_the_end_is_told_until_its_adapter_is_at_home(start: Start) -> None:
    live = start(rounds=1, min_clients=1)
    (device,) = live.join("a")
    while (given := device.next(10.0)).work:
        device.do(given.work)
    assert device.over() == given.over
    assert not live.service.is_over(time.time())
    for _ in range(2):
        assert device.tell(live.run_id, Membership("home")).json()["accepted"]
    assert device.waiting().phase == "idle" and live.service.is_over(time.time())


@pytest.mark.parametrize("rounds", [0, 1, 999, 1000, 1001, 50_000])
def test_the_end_of_a_long_run_fits_a_message(rounds: int) -> None:
    by_round = {index: 1 / (index + 3) for index in range(rounds)}
    told = thinned(by_round, MOST_ROUNDS)
    assert len(told) == min(rounds, MOST_ROUNDS)
    assert told.items() <= by_round.items()
    assert not rounds or (min(told), max(told)) == (0, rounds - 1)
    losses = {index: -1.2345678901234567e-200 * one for index, one in told.items()}
    over = Over("r", "run", "sha", rounds, 2, told, losses=losses)
    assert decode(encode(over), Over) == over
