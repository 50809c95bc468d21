"""Label work over real sockets: what devices are given, and what their answers change."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from coordinator.figures import pseudo_labels, rows
from coordinator.status import status_of
from edge_client.labelling import Labelling
from edge_client.wire import Report, Work
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device
from tests.coordinator.test_app import trained

Start = Callable[..., Live]
LABELLING = Labelling(infer_every=2, keep_first=4, keep_last=8)


def test_a_run_with_labelling_from_enrolment_to_the_end(start: Start) -> None:
    live = start(rounds=3, labelling=LABELLING)
    with ThreadPoolExecutor(2) as pool:
        # 4 evaluations, 3 trainings, labelling before rounds 1 and 3
        assert list(pool.map(Device.until_finished, live.enrol("a", "b"))) == [9, 9]
    table = rows(live.store, live.run_id)
    assert pseudo_labels(table) == {1: 8, 3: 16}
    kinds = [row["kind"] for row in table if row["device_id"] == "a" and row["round_index"] == 3]
    assert kinds == ["label", "train", "evaluate"]
    assert {row["layer_forwards"] for row in table if row["kind"] == "label"} == {60}


def test_label_work_says_how_and_with_which_adapter(start: Start) -> None:
    live = start(labelling=LABELLING)
    a, b = trained(live, "a", "b")
    work = a.work()
    first = live.service.run(live.run_id).run.adapter_sha256
    assert (work.kind, work.round_index, work.keep) == ("label", 1, 4)
    assert work.labelling == LABELLING and work.adapter_sha256 == first
    a.do(work)
    b.do(b.work())
    work = a.work()
    assert (work.kind, work.keep, work.labelling) == ("train", 0, LABELLING)


def test_label_work_is_answered_by_a_report_alone(start: Start) -> None:
    live = start(labelling=LABELLING)
    a, _ = trained(live, "a", "b")
    work = a.work()
    response = a.put(work.work_id, a.update(work))
    assert response.status_code == 422 and "asks to label" in response.json()["detail"]
    assert a.report(a.labelled(work)).accepted and a.report(a.labelled(work)).accepted
    assert not a.report(Report(work.work_id, "done", trainable=99)).accepted
    assert a.poll().status_code == 204


def test_who_found_no_label_is_not_asked_to_train(start: Start) -> None:
    live = start(rounds=1, labelling=LABELLING)
    a, b = trained(live, "a", "b")
    a.report(replace(a.labelled(a.work()), trainable=0, pseudo_labels=0))
    b.do(b.work())
    assert b.work().kind == "train" and a.poll().status_code == 204
    assert status_of(live.store, live.service.run(live.run_id).run)["texts"] == {"a": 0, "b": 10}


def test_a_failed_labelling_costs_nobody_a_place(start: Start) -> None:
    live = start(rounds=1, labelling=LABELLING)
    a, b = trained(live, "a", "b")
    a.report(Report(a.work().work_id, "failed", error="no memory"))
    b.do(b.work())
    assert (a.work().kind, b.work().kind) == ("train", "train")


def right_on(device: Device, count: int) -> Work:
    """Work until the next label work; the evaluations on the way are right on so many of four."""
    while (work := device.work()).kind != "label":
        if work.kind == "evaluate":
            device.report(Report(work.work_id, "done", 4, accuracy=count / 4))
        else:
            device.do(work)
    return work


def test_an_adapter_that_does_worse_than_the_first_does_not_label(start: Start) -> None:
    live = start(rounds=4, min_clients=1, labelling=Labelling())
    (device,) = live.enrol("a")
    first = right_on(device, 2)
    device.do(first)
    worse = right_on(device, 1)
    assert worse.adapter_sha256 == first.adapter_sha256 and worse.round_index == 2
    device.do(worse)
    again = right_on(device, 2)
    assert again.adapter_sha256 == live.service.run(live.run_id).state.adapter_sha256
    assert device.adapter(worse).keys() == device.adapter(again).keys()
