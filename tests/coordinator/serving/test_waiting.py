"""What a coordinator says: the terms before joining, what a run waits for, and how it ended."""

import logging
from collections.abc import Callable

import pytest

from coordinator.serving.telling import _base_name
from edge_client.bases.base import Base
from edge_client.wire import messages
from edge_client.wire.messages import PROTOCOL, Asking, Over, Report, Terms
from tests.coordinator.conftest import Live
from tests.coordinator.devices import enrol, wait_for

Start = Callable[..., Live]


def test_the_terms_are_told_to_a_token_that_does_not_join(start: Start) -> None:
    live = start(rounds=7)
    response = live.http.post("/v1/terms", content=messages.encode(Asking(PROTOCOL, live.token)))
    terms, config = messages.decode(response.content, Terms), live.service.run(live.run_id).config
    assert (terms.run_name, terms.rounds, terms.min_clients) == ("mail", 7, 2)
    assert (terms.task, terms.adapter_spec, terms.training) == (
        config.task,
        config.adapter,
        config.training,
    )
    assert live.store.devices() == {}
    (device,) = live.enrol("a")
    assert device.enrolled.terms == terms


def test_of_a_folder_on_the_server_devices_are_told_the_last_part(
    start: Start, tiny_base: Base
) -> None:
    (device,) = start().enrol("a")
    assert device.enrolled.terms.base_name == f"./{tiny_base.folder.name}"


@pytest.mark.parametrize(
    ("named", "loaded_as", "told"),
    [
        ("packs/large-4", "org/large", "./large-4"),
        ("models/base", "./base", "./base"),
        ("base", "./base", "./base"),
        ("/srv/models/base", "./base", "./base"),
        ("org/base", "org/base", "org/base"),
        ("embedded", "embedded", "embedded"),
    ],
)
def test_a_relative_folder_is_not_told_as_a_name_of_the_hub(
    named: str, loaded_as: str, told: str
) -> None:
    assert _base_name(named, loaded_as) == told


def test_a_lone_device_is_told_that_one_more_is_needed(start: Start) -> None:
    (device,) = start().enrol("a")
    waiting = device.waiting()
    assert (waiting.phase, waiting.missing, waiting.asked) == ("waiting", 1, 2)
    assert waiting.round_index == 1 and waiting.closes_in_s is None


def test_who_has_answered_is_told_for_how_many_the_step_waits(start: Start) -> None:
    a, b = start(deadline_s=300.0).enrol("a", "b")
    a.poll()
    b.poll()
    a.do(a.work())
    waiting = a.waiting()
    assert (waiting.phase, waiting.missing, waiting.asked) == ("evaluate", 1, 2)
    assert waiting.closes_in_s is not None and 200 < waiting.closes_in_s <= 300
    assert waiting.names == ()


def test_names_are_told_where_the_owner_says_so(start: Start) -> None:
    a, b = start(tell_names=True).enrol("hall", "kitchen")
    a.poll()
    b.poll()
    a.do(a.work())
    assert a.waiting().names == ("kitchen",)


def test_a_device_that_left_is_not_waited_for_and_comes_back_by_asking(start: Start) -> None:
    live = start(rounds=2)
    a, b = live.enrol("a", "b")
    a.poll()
    b.poll()
    a.do(a.work())
    gone = Report(b.work().work_id, "failed", failure="texts", is_leaving=True)
    b.report(gone)
    assert a.work().kind == "train"
    assert live.service.run(live.run_id).state.left == {"b": "texts"}
    b.poll()
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
    a.poll()
    wait_for(lambda: "mail: waiting for 1 more device (--min-clients 2); here: hall" in caplog.text)
    (b,) = live.enrol("kitchen")
    b.poll()
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


def test_the_log_says_why_a_device_failed_and_that_it_left(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = start(rounds=1).enrol("a", "b")
    a.poll()
    b.poll()
    b.report(Report(b.work().work_id, "failed", failure="budget", is_leaving=True))
    assert "no plan fits the device's memory budget; it has left" in caplog.text


def test_the_end_is_told_with_the_adapter_and_how_it_went(start: Start) -> None:
    live = start(rounds=2, min_clients=1)
    (device,) = live.enrol("a")
    device.until_finished()
    over = messages.decode(device.poll().content, Over)
    state = live.service.run(live.run_id).state
    assert (over.adapter_sha256, over.rounds, over.devices) == (state.adapter_sha256, 2, 1)
    assert over.accuracies == {0: 0.0, 1: 0.25, 2: 0.5}
    path = f"/v1/adapters/{over.adapter_sha256}"
    assert live.http.get(path, headers=device.headers).is_success


def test_a_device_that_joins_a_finished_run_gets_its_adapter(start: Start) -> None:
    live = start(rounds=1, min_clients=1)
    live.enrol("a")[0].until_finished()
    late = enrol(live.http, live.token, "late")
    over = messages.decode(late.poll().content, Over)
    path = f"/v1/adapters/{over.adapter_sha256}"
    assert live.http.get(path, headers=late.headers).is_success
