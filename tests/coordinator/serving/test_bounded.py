"""What a coordinator holds does not grow: files, memory, and a disk that fills up."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import DiskLimits
from smidgen.edge_client.wire.messages import Report
from tests.coordinator.conftest import Live, serving
from tests.coordinator.devices import Device, wait_for
from tests.coordinator.upkeep.stores import filled, names


@dataclass
class Disk:
    """How much is free of a disk, as a test says.

    Attributes:
        free: Bytes.
    """

    free: int = 1 << 40

    def usage(self, _: Path) -> "Disk":
        return self


@contextmanager
def coordinator(
    folder: Path, config: RunConfig, limits: DiskLimits, disk: Disk | None = None, **settings: Any
) -> Iterator[Live]:
    run, usage = replace(config, **settings), (disk or Disk()).usage
    with closing(Store(folder)) as store, serving(store, run, limits=limits, usage=usage) as live:
        yield live


def work_until_finished(devices: list[Device]) -> None:
    end = time.monotonic() + 60
    while True:
        for device in devices:
            given = device.next(0.5)
            if given.over is not None:
                return
            if given.work is not None:
                device.do(given.work)
        assert time.monotonic() < end


def test_a_served_run_keeps_the_adapters_that_it_needs_and_no_update(
    tmp_path: Path, config: RunConfig
) -> None:
    with coordinator(tmp_path, config, DiskLimits(keep_rounds=2), rounds=7) as live:
        devices = live.join("a", "b")
        work_until_finished(devices)
        state = live.service.run(live.run_id).state
        wait_for(lambda: len(names(tmp_path)) <= 5)
        left = names(tmp_path)
        assert {state.first_sha256, state.adapter_sha256} <= left
        for name in left:
            path = f"/v1/adapters/{name}"
            assert live.http.get(path, headers=devices[0].headers).status_code == 200


def test_work_of_long_ago_is_closed_whoever_answers_it(tmp_path: Path, config: RunConfig) -> None:
    with coordinator(tmp_path, config, DiskLimits(), rounds=4, deadline_s=0.3) as live:
        a, b = live.join("a", "b")
        a.do(a.work())
        b.do(b.work())
        old = a.work()
        body = a.update(old)
        while live.service._ledger.asked(old.work_id) is not None:  # a is late for all of them
            if work := b.next(1.0).work:
                b.do(work)
        receipt = a.report(Report(old.work_id, "done", 3, loss=1.0))
        assert not receipt.accepted and "closed" in receipt.reason
        told = a.put(old.work_id, body).json()
        assert not told["accepted"] and "closed" in told["reason"]
        assert a.put("no-work-id", body).status_code == 404


def test_the_ledger_knows_the_work_of_three_steps_however_long_the_journal(
    tmp_path: Path,
) -> None:
    with closing(Store(tmp_path)) as store:
        run = filled(store, "mail", rounds=30, devices=5, open_updates=2)
        ledger = Ledger(store, 0.0)
        live = ledger.run(run.run_id)
        assert live is not None and live.state.step is not None
        assert len(ledger._asked) == 3 * 5 and len(ledger._counted) == 2 * 5 + 2
        assert all(ledger.asked(work_id) for work_id in live.state.step.members)


def test_a_full_disk_opens_no_step_takes_no_update_and_goes_on_by_itself(
    tmp_path: Path, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk, limits = Disk(), DiskLimits(least_free_bytes=1000)
    with coordinator(tmp_path, config, limits, disk, rounds=1) as live:
        a, b = live.join("a", "b")
        a.do(a.work())
        b.do(b.work())
        work = a.work()
        assert work.kind == "train"
        disk.free = 999
        wait_for(lambda: live.service.caretaker.is_full)
        refused = a.put(work.work_id, a.update(work))
        assert refused.status_code == 507 and int(refused.headers["Retry-After"]) > 0
        assert "full" in refused.json()["detail"]
        b.report(Report(b.work().work_id, "failed", failure="training"))
        assert b.waiting().phase == "full" and b.waiting().run_name == "mail"
        time.sleep(0.4)  # several ticks
        disk.free = 1000
        wait_for(lambda: not live.service.caretaker.is_full)
        assert a.put(work.work_id, a.update(work)).json()["accepted"]
        work_until_finished([a, b])
    said = [one.getMessage() for one in caplog.records if "disk of the store" in one.getMessage()]
    assert len(said) == 2 and "full" in said[0] and "going on" in said[1]


def test_no_step_opens_on_a_full_disk(tmp_path: Path, config: RunConfig) -> None:
    disk = Disk(free=0)
    with coordinator(tmp_path, config, DiskLimits(least_free_bytes=1000), disk) as live:
        a, _ = live.join("a", "b")
        time.sleep(0.3)
        assert live.service.run(live.run_id).state.step is None
        assert a.waiting().phase == "full"
        disk.free = 2000
        assert a.work().kind == "evaluate"
