"""Whole runs by real processes whose database and bucket fail again and again: the same bytes."""

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from smidgen.coordinator.storage.database import StorePlace
from smidgen.edge_client.bases.base import Base
from tests.coordinator.servers import Buckets, Postgres, wait_until
from tests.coordinator.serving.many.processes import (
    NAMES,
    adapter_of,
    calm,
    check_counted_once,
    coordinators,
    witnesses,
    works_through,
)
from tests.coordinator.storage.shared.proxies import FAULTS, disturbing
from tests.coordinator.test_cli import created

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS, BUCKET_ROUNDS = 14, 6
STOPS = int(os.environ.get("SMIDGEN_FAULT_STOPS", "5"))
SHARE = 0.3  # of the requests to the bucket that go wrong
HARD = ("refused", "request cut", "answer lost")  # after which nobody knows that it was written
LONGEST_S = 2.5  # of such a time, in which all go wrong in these ways, and of the time between


def are_over(done: list["Future[None]"]) -> bool:
    return all(one.done() for one in done)


def test_a_bucket_that_refuses_cuts_and_delays_changes_no_byte(
    tmp_path: Path,
    place: StorePlace,
    buckets: Buckets,
    tiny_base: Base,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, draw = calm(tmp_path / "calm", tiny_base, BUCKET_ROUNDS), random.Random(seed)
    shared = ("--database", place.database, "--blobs", place.blobs)
    with disturbing(buckets.url, seed) as way, ThreadPoolExecutor(len(NAMES)) as pool:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        token = created(
            tmp_path, tiny_base, BUCKET_ROUNDS, "--min-clients", str(len(NAMES)), *shared
        )
        with coordinators(tmp_path, place, 2) as many:
            ports = list(many.processes)
            devices = witnesses(f"http://127.0.0.1:{ports[0]}", token)
            done = [pool.submit(works_through, ports, one, seed) for one in devices]
            way.share, way.kinds = 1.0, HARD
            wait_until(lambda: any(one.refusals for one in devices), "nobody was refused")
            while not are_over(done):
                for way.share, way.kinds in ((SHARE, FAULTS), (1.0, HARD)):
                    time.sleep(draw.uniform(0.0, LONGEST_S))
            way.share = 0.0
            for one in done:
                one.result()
            assert adapter_of(tmp_path, many.options) == expected
        check_counted_once(many, devices)
    refused = Counter(text for one in devices for text in one.refusals)
    print(f"faults of the bucket: {dict(way.faults)}; devices heard: {dict(refused)}")
    assert all(way.faults[kind] for kind in FAULTS)
    assert {text.partition(":")[0] for text in refused} == {"503"}


@pytest.mark.parametrize("share", [0.0, SHARE], ids=["a sound bucket", "a bucket that fails too"])
def test_a_database_started_anew_while_coordinators_are_killed_changes_no_byte(
    tmp_path: Path,
    place: StorePlace,
    postgres: Postgres,
    buckets: Buckets,
    tiny_base: Base,
    seed: int,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = calm(tmp_path / "calm", tiny_base, ROUNDS)
    draw, told = random.Random(seed), Counter[str]()
    shared = ("--database", place.database, "--blobs", place.blobs)
    token = created(tmp_path, tiny_base, ROUNDS, "--min-clients", str(len(NAMES)), *shared)
    with disturbing(buckets.url, seed) as way, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", way.url)
        with (
            coordinators(tmp_path, place, 2) as many,
            ThreadPoolExecutor(len(NAMES)) as pool,
            ThreadPoolExecutor(2) as starters,
        ):
            ports = list(many.processes)
            devices = witnesses(f"http://127.0.0.1:{ports[0]}", token)
            done = [pool.submit(works_through, ports, one, seed) for one in devices]
            for number in range(STOPS):
                way.share = share
                time.sleep(draw.uniform(0.1, 1.5))
                if are_over(done):
                    break
                how = (signal.SIGINT, signal.SIGQUIT)[number % 2]
                postgres.stop(how)
                try:
                    some = draw.sample(ports, draw.choice((0, 0, 1, 2)))
                    for port in some:
                        many.end(port)
                    time.sleep(draw.uniform(0.0, 1.5))
                finally:
                    postgres.start()
                way.share = 0.0  # a start that finds no bucket says so and ends
                list(starters.map(many.start, some))
                told.update([signal.Signals(how).name, *["kill -9"] * len(some)])
            for one in done:
                one.result(240)
            assert adapter_of(tmp_path, many.options) == expected
        check_counted_once(many, devices)
    refused = Counter(text for one in devices for text in one.refusals)
    print(f"the database was stopped: {dict(told)}; faults of the bucket: {dict(way.faults)}")
    print(f"devices heard: {dict(refused)}")
    assert told["SIGINT"] and told["SIGQUIT"]
    assert bool(way.faults.keys() - {"none"}) == bool(share)
    assert {text.partition(":")[0] for text in refused} <= {"503"}
