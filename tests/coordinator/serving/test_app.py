"""A real server and real sockets: what devices may do, and what they get when they may not."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from smidgen.coordinator.serving.device_routes import LONGEST_POLL_S
from smidgen.coordinator.serving.ledger import CLOSED, LATE
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.reports import accuracies, rows
from smidgen.coordinator.storage.runs import create_run
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_update,
    digest_header,
    encode_adapter,
    encode_update,
    sha256,
)
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device, wait_for

Start = Callable[..., Live]


def test_a_run_from_enrolment_to_the_end(start: Start) -> None:
    live = start(rounds=3)
    devices = live.enrol("b", "a", "c")
    with ThreadPoolExecutor(3) as pool:
        # The first evaluation opens when two are there; the third joins it or comes a step later.
        assert all(done >= 6 for done in pool.map(Device.until_finished, devices))
    state = live.service.run(live.run_id).state
    assert state.phase == "finished" and state.round_index == 3
    accuracy = accuracies(rows(live.store, live.run_id))
    assert accuracy == {0: 0.0, 1: 0.25, 2: 0.5, 3: 0.75}


def test_the_mean_is_weighted_by_examples(start: Start) -> None:
    live = start(rounds=1)
    devices = live.evaluated("a", "b")
    first: AdapterState = {}
    total: AdapterState = {}
    weights = 0
    for device in devices:
        work = device.work()
        body = device.update(work)
        update = decode_update(body)
        first = device.adapter(work)
        weights += update.num_examples
        for name, delta in update.delta.items():
            total[name] = total.get(name, 0.0) + update.num_examples * delta.astype(np.float64)
        device.put(work.work_id, body)
    after = devices[0].adapter(devices[0].work())
    for name, tensor in after.items():
        # two float32 roundings, mean and sum
        np.testing.assert_allclose(tensor, first[name] + total[name] / weights, atol=1e-6)


def test_an_answer_does_not_wait_for_an_acknowledgement(start: Start) -> None:
    """Header and body are two writes; with Nagle's algorithm every answer would take 40 ms."""
    live, times = start(), []
    for _ in range(21):
        began = time.perf_counter()
        live.http.get("/healthz")
        times.append(time.perf_counter() - began)
    assert min(times) < 0.03


def test_a_long_poll_hears_of_work_at_once(start: Start) -> None:
    """In the median of five: a busy machine may take any one of them off its processor."""
    first, second = start(rounds=3).join("a", "b")
    assert median(heard_after_s(first, second) for _ in range(5)) < 1.0


def heard_after_s(first: Device, second: Device) -> float:
    """Seconds from the answer that ends a step to that of a poll which waited for the next one."""
    heard: list[float] = []

    def wait() -> None:
        first.work(wait_s=LONGEST_POLL_S)
        heard.append(time.monotonic())

    first.do(first.work())
    last = second.work()
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    asked = time.monotonic()
    second.do(last)
    thread.join(2 * LONGEST_POLL_S)
    return heard[0] - asked


def test_a_poll_is_answered_while_the_disk_takes_an_answer(start: Start) -> None:
    live = start()
    first, second = live.evaluated("a", "b")
    work = first.work()
    answering = threading.Thread(target=first.put, args=(work.work_id, first.update(work)))
    with live.service.store.database.transaction():  # nobody else may write meanwhile
        answering.start()
        time.sleep(0.3)
        assert second.next(0).work  # it would wait for the disk until this block ends
        assert answering.is_alive()
    answering.join(120)
    assert not answering.is_alive()


def test_a_poll_without_work_ends_after_its_wait(start: Start) -> None:
    (device,) = start().join("a")
    spent_s = []
    for _ in range(3):
        began = time.monotonic()
        assert device.next(0.4).waiting
        spent_s.append(time.monotonic() - began)
    assert min(spent_s) >= 0.4 and median(spent_s) < 2.0
    assert device.next(-5).waiting
    assert device.next(float("nan")).waiting


def test_an_adapter_can_be_fetched_in_parts(start: Start) -> None:
    live = start()
    (device,) = live.join("a")
    sha = live.service.run(live.run_id).run.adapter_sha256
    whole = live.http.get(f"/v1/adapters/{sha}", headers=device.headers)
    assert sha256(whole.content) == sha
    assert whole.headers["Repr-Digest"] == digest_header(sha256(whole.content))
    part = live.http.get(
        f"/v1/adapters/{sha}",
        headers=device.headers | {"Range": "bytes=100-", "If-Range": whole.headers["ETag"]},
    )
    assert part.status_code == 206 and part.content == whole.content[100:]


def test_only_adapters_can_be_fetched(start: Start) -> None:
    live = start()
    a, _ = live.evaluated("a", "b")
    work = a.work()
    body = a.update(work)
    a.put(work.work_id, body)
    for name in (sha256(body), "0" * 64, "..%2Fcoordinator.db", "x"):
        assert live.http.get(f"/v1/adapters/{name}", headers=a.headers).status_code == 404


def test_only_devices_of_a_run_fetch_its_adapters(start: Start) -> None:
    live = start()
    (member,), (stranger,) = live.join("a"), live.enrol("b")
    path = f"/v1/adapters/{live.service.run(live.run_id).run.adapter_sha256}"
    told = [live.http.get(path, headers=one.headers).status_code for one in (member, stranger)]
    assert told == [200, 404]


def test_the_same_update_twice_counts_once(start: Start) -> None:
    live = start()
    a, b = live.evaluated("a", "b")
    work = a.work()
    body = a.update(work)
    assert a.put(work.work_id, body).json() == a.put(work.work_id, body).json()
    assert a.put(work.work_id, body).json()["accepted"]
    step = live.service.run(live.run_id).state.step
    assert step is not None and len(step.answers) == 1
    other = encode_update(Update(work.work_id, 1, decode_update(body).delta))
    assert "answered already" in a.put(work.work_id, other).json()["reason"]
    b.do(b.work())
    a.work()
    assert a.put(work.work_id, body).json()["accepted"]  # its step is closed, but it counts
    told = a.put(work.work_id, other).json()
    assert told == {"accepted": False, "reason": "answered already: done"}


def test_what_is_not_yours_is_refused(start: Start) -> None:
    live = start()
    a, b = live.evaluated("a", "b")
    work = a.work()
    body = a.update(work)
    assert b.put(work.work_id, body).status_code == 403
    assert a.put("f" * 31, body).status_code == 404
    assert not a.put("f" * 32, body).json()["accepted"]  # it may have been asked long ago
    mine = b.work()
    assert b.put(mine.work_id, body).status_code == 422  # a's update sent for b's work
    step = live.service.run(live.run_id).state.step
    assert step is not None and not step.answers


def test_an_update_that_is_not_what_was_asked_for_is_named(start: Start) -> None:
    a, _ = start().evaluated("a", "b")
    work = a.work()
    delta = a.adapter(work)
    first = min(delta)
    huge = np.full(delta[first].shape, 3e38, np.float32)
    cases = {
        "is missing": {name: tensor for name, tensor in delta.items() if name != first},
        "is not expected": delta | {"more": np.zeros(1, np.float32)},
        "has shape": delta | {first: np.zeros((1, 1), np.float32)},
        "NaN or infinity": delta | {first: np.full(delta[first].shape, np.nan, np.float32)},
    }
    for said, state in cases.items():
        response = a.put(work.work_id, encode_update(Update(work.work_id, 1, state)))
        assert response.status_code == 422 and said in response.json()["detail"]
        assert "\n" not in response.json()["detail"]
    body = a.update(work)
    assert a.put(work.work_id, body, "").status_code == 422
    assert a.put(work.work_id, body, digest_header(sha256(b"other"))).status_code == 400
    assert a.put(work.work_id, body[:-1]).status_code == 422
    assert a.put(work.work_id, encode_adapter(delta)).status_code == 422
    grown = delta | {first: huge}
    assert a.put(work.work_id, encode_update(Update(work.work_id, 1, grown))).is_success
    assert a.next().waiting


def test_a_body_that_is_too_long_is_not_kept(start: Start) -> None:
    a, _ = start().evaluated("a", "b")
    work = a.work()
    response = a.put(work.work_id, b"x" * (work.adapter_bytes + 64 * 1024 + 1))
    assert response.status_code == 413 and "over" in response.json()["detail"]
    fits = a.put(work.work_id, b"x" * (work.adapter_bytes + 64 * 1024))
    assert fits.status_code == 422
    assert a.http.post("/v1/enrol", content=b" " * 300_000).status_code == 413


def test_a_failure_answers_and_its_round_goes_on(start: Start) -> None:
    live = start(rounds=1)
    a, b = live.evaluated("a", "b")
    failed = Report(a.work().work_id, "failed", failure="memory")
    assert a.report(failed).accepted
    assert a.report(failed).accepted
    b.do(b.work())
    assert b.work().kind == "evaluate"
    assert not a.report(Report(failed.work_id, "done", 8, loss=1.0)).accepted
    table = rows(live.store, live.run_id)
    assert [row["outcome"] for row in table if row["kind"] == "train"] == ["failed", "done"]


def test_a_late_answer_does_not_count_but_its_figures_are_kept(start: Start) -> None:
    live = start(rounds=1, deadline_s=1.0)
    a, b = live.evaluated("a", "b")
    late = a.work()
    body = a.update(late)
    b.do(b.work())
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    receipt = a.put(late.work_id, body).json()
    assert not receipt["accepted"] and "closed" in receipt["reason"]
    assert not a.report(Report(late.work_id, "done", 3, loss=9.0)).accepted
    table = rows(live.store, live.run_id)
    assert [(r["device"], r["is_late"]) for r in table if r["kind"] == "train"] == [
        ("a", True),
        ("b", False),
    ]


def test_a_run_made_by_another_process_is_picked_up(start: Start) -> None:
    live = start()
    config = replace(live.service.run(live.run_id).config, name="another")
    (device,) = live.join("a")
    created = create_run(live.store, config, time.time())
    wait_for(lambda: created.run_id in {terms.run_id for terms in device.join()})


def test_a_waiting_poll_does_not_hold_up_the_end(start: Start) -> None:
    """The fixture's teardown stops the server; it must not take as long as the poll would."""
    (device,) = start().join("a")
    port = device.http.base_url.port
    assert port is not None
    key = device.headers["Authorization"]
    poll = f"GET /v1/work?wait_s=60 HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(poll.encode())
        time.sleep(0.3)
        connection.shutdown(socket.SHUT_WR)


def test_a_connection_cut_in_the_middle_of_an_update_changes_nothing(start: Start) -> None:
    live = start()
    a, _ = live.evaluated("a", "b")
    work = a.work()
    body = a.update(work)
    port = a.http.base_url.port
    assert port is not None
    head = (
        f"PUT /v1/work/{work.work_id}/update HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: {a.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n"
        f"Repr-Digest: {digest_header(sha256(body))}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body[: len(body) // 2])
    wait_for(lambda: any(live.store.uploads.iterdir()))  # it was read, and cut
    assert a.work().work_id == work.work_id
    assert a.put(work.work_id, body).json() == {"accepted": True}


def test_a_device_that_was_silent_is_not_asked(start: Start) -> None:
    live = start(min_clients=3)
    a, b = live.join("a", "b")
    now = time.time()
    assert live.service.alive(live.run_id, now) == {a.device_id, b.device_id}
    live.service.saw(live.service.device_of(a.key), now - 200)
    assert live.service.alive(live.run_id, now) == {b.device_id}
    assert live.service.alive(live.run_id, now + 200) == set()


@pytest.mark.parametrize("pause_s", [10.0, 10_000.0])
def test_while_no_coordinator_ran_nobody_was_silent(start: Start, pause_s: float) -> None:
    live = start()
    devices = live.evaluated("a", "b")
    for device in devices:
        device.work()
    now = time.time()
    again = Service(live.store, now + pause_s)
    assert again.alive(live.run_id, now + pause_s) == {one.device_id for one in devices}
    step = again.run(live.run_id).state.step
    assert step is not None and step.opened.opened_at_s == now + pause_s


def test_an_update_that_comes_after_enough_others_is_too_late(start: Start) -> None:
    live = start(min_clients=2, fraction=0.5, over_selection=2.0, deadline_s=300.0)
    a, b = live.evaluated("a", "b")
    work, other = a.work(), b.work()
    body, late = a.update(work), b.update(other)
    assert a.put(work.work_id, body).json()["accepted"]
    assert a.put(work.work_id, body).json()["accepted"]  # the same once more
    told = b.put(other.work_id, late).json()
    assert not told["accepted"] and told["reason"] in (LATE.reason, CLOSED.reason)
    assert not b.report(Report(other.work_id, "done", 8, loss=1.0)).accepted
    assert b.work().kind == "evaluate"
    assert b.put(other.work_id, late).json()["reason"] == CLOSED.reason
    assert b.put("0" * 32, late).json()["reason"] == CLOSED.reason  # it may be of long ago
    assert b.put("nothing", late).status_code == 404
