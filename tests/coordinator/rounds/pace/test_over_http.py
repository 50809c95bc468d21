"""Asynchronous rounds over HTTP: old work stays open, also over a restart, and has its answer."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.history import to_plain
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import replay
from smidgen.coordinator.serving.ledger import OUT_OF_DATE
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.messages import Report
from tests.coordinator.conftest import Live, served
from tests.coordinator.devices import Device, joined

Start = Callable[..., Live]
RULE = Asynchronous(buffer=2, most_staleness=3)


def rounds_by(live: Live, devices: list[Device], until: int) -> None:
    """Let some devices work until so many rounds have closed, or the run is finished."""
    while (state := live.service.run(live.run_id).state).round_index < until:
        if state.is_finished:
            break
        for device in devices:
            given = device.next(0.02)
            if given.work is not None:
                device.do(given.work)


def test_an_update_to_an_older_adapter_counts_in_the_version_that_is_open(start: Start) -> None:
    live = start(asynchronous=RULE, rounds=8, min_clients=3, deadline_s=300.0)
    *quick, slow = live.evaluated("a", "b", "slow")
    work = slow.work()
    rounds_by(live, quick, 2)
    assert slow.work() == work  # the same until it is answered, and its adapter is kept
    assert slow.put(work.work_id, slow.update(work)).json()["accepted"]
    assert slow.report(Report(work.work_id, "done", 8, loss=1.0)).accepted
    rounds_by(live, [*quick, slow], 9)
    journal = list(live.store.journal(live.run_id))
    state = replay(live.store.runs()[0].adapter_sha256, journal)
    assert to_plain(state) == to_plain(live.service.run(live.run_id).state)


def test_an_update_that_is_too_old_is_out_of_date(start: Start) -> None:
    live = start(asynchronous=RULE, rounds=12, min_clients=3, deadline_s=300.0)
    *quick, slow = live.evaluated("a", "b", "slow")
    work = slow.work()
    body = slow.update(work)
    rounds_by(live, quick, 6)
    told = slow.put(work.work_id, body).json()
    assert told == {"accepted": False, "reason": OUT_OF_DATE.reason} or told["reason"] in (
        "its step is closed",  # so old that nobody knows what it was
    )
    newer = slow.work()
    assert newer.work_id != work.work_id


def test_work_of_several_versions_survives_a_restart(tmp_path: Path, config: RunConfig) -> None:
    rule = replace(RULE, most_staleness=20)
    with closing(Store(tmp_path / "store")) as store:
        made = create_run(
            store, replace(config, asynchronous=rule, rounds=9, min_clients=3), time.time()
        )
        with served(store) as (service, http):
            live = Live(store, service, http, made.run_id, made.token)
            *quick, slow = live.evaluated("a", "b", "slow")
            work = slow.work()
            rounds_by(live, quick, 2)
        with served(store) as (service, http):
            live = Live(store, service, http, made.run_id, made.token)
            *quick, slow = (joined(http, made.token, name) for name in ("a", "b", "slow"))
            assert slow.work().work_id == work.work_id
            rounds_by(live, quick, 6)  # past as many steps as are remembered of other runs
            assert slow.work().work_id == work.work_id
            assert slow.put(work.work_id, slow.update(work)).json()["accepted"]
            rounds_by(live, [*quick, slow], 10)
            assert service.run(made.run_id).state.is_finished
