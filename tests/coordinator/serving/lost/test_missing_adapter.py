"""An adapter's file that is gone for a while: updates are kept, and other runs go on."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from smidgen.coordinator.storage.runs import create_run
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.tensors import decode_adapter
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for

Start = Callable[..., Live]


def test_an_update_whose_adapter_is_gone_is_asked_for_again_and_then_taken(
    start: Start, tmp_path: Path
) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    device.do(device.work())
    work = device.work()
    body, path = device.update(work), live.store.blobs.path(work.adapter_sha256)
    path.rename(tmp_path / "taken")
    for answer in (device.put(work.work_id, body), device.poll()):
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
    path_of = f"/v1/adapters/{work.adapter_sha256}"  # nobody waits in a download
    assert device.http.get(path_of, headers=device.headers).status_code == 404
    (tmp_path / "taken").rename(path)
    assert device.put(work.work_id, body).json()["accepted"]


def test_a_late_update_whose_adapter_is_gone_for_good_hears_that_its_step_is_over(
    start: Start,
) -> None:
    live = start(min_clients=1, rounds=1, deadline_s=1.0, adaptive_deadline=False)
    a, b = live.join("a", "b")
    for device in (a, b):
        device.do(device.work())
    late = a.work()
    body = a.update(late)
    b.do(b.work())
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    live.store.blobs.path(late.adapter_sha256).unlink()
    answer = a.put(late.work_id, body)
    assert answer.status_code == 200 and not answer.json()["accepted"]


def test_a_run_whose_adapter_is_gone_holds_up_no_other(start: Start, tmp_path: Path) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    wait_for(lambda: live.service.run(live.run_id).state.step is not None)
    config = replace(live.service.run(live.run_id).config, name="second", seed=1)
    config = replace(config, adapter="lora:3")
    second = create_run(live.store, config, time.time()).run_id
    wait_for(lambda: len(live.service.runs()) == 2)
    assert device.join()[0].run_id == second
    wait_for(lambda: live.service.run(second).state.step is not None)
    path = live.store.blobs.path(live.service.run(live.run_id).state.adapter_sha256)
    path.rename(tmp_path / "taken")
    work = device.work()
    assert work.run_id == second
    device.do(work)
    (tmp_path / "taken").rename(path)
    assert {device.work().run_id} == {live.run_id}


def test_a_run_that_is_over_lets_nobody_in_who_had_declined(start: Start) -> None:
    live = start(min_clients=1, rounds=1)
    (a,), (b,) = live.join("a"), live.enrol("b")
    assert b.tell(live.run_id, Membership("declined", "texts")).json()["accepted"]
    for _ in range(3):
        a.do(a.work())
    over = a.over()
    receipt = b.tell(live.run_id, Membership("joined")).json()
    assert not receipt["accepted"] and receipt["reason"] == "it is over"
    path = f"/v1/adapters/{over.adapter_sha256}"
    assert b.http.get(path, headers=b.headers).status_code == 404
    assert decode_adapter(a.http.get(path, headers=a.headers).content)
