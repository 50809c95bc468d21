"""Label work over real sockets: what devices are given, and what their answers change."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from smidgen.coordinator.storage.reports import pseudo_labels, rows
from smidgen.coordinator.storage.runs import status_of
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.reports import STARTS, as_bin, bin_of, counted
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device

Start = Callable[..., Live]
LABELLING = Labelling(infer_every=2, keep_first=0.1, keep_last=0.5)


def test_a_run_with_labelling_from_enrolment_to_the_end(start: Start) -> None:
    live = start(rounds=3, labelling=LABELLING)
    with ThreadPoolExecutor(2) as pool:
        # 4 evaluations, 3 trainings, labelling before rounds 1 and 3
        assert list(pool.map(Device.until_finished, live.enrol("a", "b"))) == [9, 9]
    table = rows(live.store, live.run_id)
    assert pseudo_labels(table) == {1: 6, 3: 30}  # of 30 texts each
    kinds = [row["kind"] for row in table if row["device"] == "a" and row["round_index"] == 3]
    assert kinds == ["label", "train", "evaluate"]
    assert {row["layer_forwards"] for row in table if row["kind"] == "label"} == {60}


def test_label_work_says_how_and_with_which_adapter(start: Start) -> None:
    live = start(labelling=LABELLING)
    a, b = live.evaluated("a", "b")
    work = a.work()
    first = live.service.run(live.run_id).run.adapter_sha256
    assert (work.kind, work.round_index, work.keep) == ("label", 1, 0.1)
    assert work.labelling == LABELLING and work.adapter_sha256 == first
    a.do(work)
    b.do(b.work())
    work = a.work()
    assert (work.kind, work.keep, work.labelling) == ("train", 0.1, LABELLING)


def test_devices_are_told_of_the_population(start: Start) -> None:
    live = start(labelling=Labelling())
    a, b = devices = live.join("a", "b")
    labels = len(a.work().task.labels)
    for device, texts, mean in zip(devices, (4, 12), (-1.0, -3.0), strict=True):
        report = Report(device.work().work_id, "done", texts, accuracy=0.5)
        device.report(replace(report, mean_log_probabilities=(mean,) * labels))
    works = [a.work(), b.work()]
    a.do(works[0])
    assert b.work() == works[1]  # what a said is nobody's to know yet
    b.do(works[1])
    for work in works:
        assert (work.kind, work.prior, work.keep) == ("label", (-2.5,) * labels, 0.1)
        assert work.thresholds == (as_bin(0.9),) * labels
    sure = STARTS[bin_of(0.95)]  # all texts of both devices
    assert [a.work().thresholds, b.work().thresholds] == [(sure,) * labels] * 2
    assert (a.work().kind, a.work().prior, a.work().keep) == ("train", (), 0.1)


def test_label_work_is_answered_by_a_report_alone(start: Start) -> None:
    live = start(labelling=LABELLING)
    a, _ = live.evaluated("a", "b")
    work = a.work()
    response = a.put(work.work_id, a.update(work))
    assert response.status_code == 422 and "asks to label" in response.json()["detail"]
    assert a.report(a.labelled(work)).accepted and a.report(a.labelled(work)).accepted
    assert not a.report(Report(work.work_id, "done", labelled=99)).accepted
    assert a.next().waiting


def test_who_has_no_gold_label_and_is_sure_of_nothing_is_not_asked_to_train(start: Start) -> None:
    live = start(rounds=1, labelling=LABELLING)
    a, b = live.evaluated("a", "b")
    report = replace(a.labelled(a.work()), labelled=0, pseudo_labels=0)
    a.report(replace(report, confidences=counted(30, [0], [0.6], len(a.work().task.labels))))
    b.do(b.work())
    assert b.work().kind == "train" and a.next().waiting
    assert status_of(live.store, live.service.run(live.run_id).run)["texts"] == {"a": 0, "b": 2}


def test_a_failed_labelling_costs_nobody_a_place(start: Start) -> None:
    live = start(rounds=1, labelling=LABELLING)
    a, b = live.evaluated("a", "b")
    a.report(Report(a.work().work_id, "failed", failure="memory"))
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
    (device,) = live.join("a")
    first = right_on(device, 2)
    device.do(first)
    worse = right_on(device, 1)
    assert worse.adapter_sha256 == first.adapter_sha256 and worse.round_index == 2
    device.do(worse)
    again = right_on(device, 2)
    assert again.adapter_sha256 == live.service.run(live.run_id).state.adapter_sha256
    assert device.adapter(worse).keys() == device.adapter(again).keys()
