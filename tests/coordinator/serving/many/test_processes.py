"""Real processes of one fleet: killed, stopped, and started by `--workers`."""

import os
import random
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from smidgen.coordinator.storage.database import StorePlace
from smidgen.edge_client.bases.base import Base
from tests.coordinator.devices import wait_for
from tests.coordinator.servers import Postgres
from tests.coordinator.serving.many.processes import (
    NAMES,
    adapter_of,
    calm,
    check_counted_once,
    coordinators,
    witnesses,
    works_through,
)
from tests.coordinator.test_cli import SMIDGEN, created, server
from tests.processes import children_of

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("SMIDGEN_FAULT_ROUNDS", "40"))
KILLS = int(os.environ.get("SMIDGEN_FAULT_KILLS", "12"))


@pytest.mark.fault
@pytest.mark.timeout(900)
def test_kill_9_of_any_coordinator_changes_no_byte(
    tmp_path: Path, place: StorePlace, tiny_base: Base, seed: int
) -> None:
    expected = calm(tmp_path / "calm", tiny_base, ROUNDS)
    folder, draw = tmp_path / "stormy", random.Random(seed)
    folder.mkdir()
    shared = ("--database", place.database, "--blobs", place.blobs)
    token = created(folder, tiny_base, ROUNDS, "--min-clients", str(len(NAMES)), *shared)
    with (
        coordinators(folder, place, 3) as many,
        ThreadPoolExecutor(len(NAMES)) as pool,
        ThreadPoolExecutor(3) as starters,
    ):
        ports = list(many.processes)
        devices = witnesses(f"http://127.0.0.1:{ports[0]}", token)
        done = [pool.submit(works_through, ports, device, seed) for device in devices]
        killed = 0
        while not all(one.done() for one in done) and killed < KILLS:
            time.sleep(draw.uniform(0.1, 1.0))
            some = draw.sample(ports, draw.choice((1, 2, 3)))
            for port in some:
                many.end(port)
            list(starters.map(many.start, some))
            killed += len(some)
        for one in done:
            one.result(600)
        print(f"{killed} kills")
        assert adapter_of(folder, many.options) == expected
    check_counted_once(many, devices)


def test_another_leads_within_ten_seconds_when_the_leader_is_killed_or_stands_still(
    tmp_path: Path, place: StorePlace, tiny_base: Base
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    created(tmp_path, tiny_base, 1, *shared)
    with coordinators(tmp_path, place, 3) as many:
        led = set[int]()
        for how in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP):
            began_s = time.monotonic()
            wait_for(lambda: bool(many.leaders() - led))
            print(f"leads after {time.monotonic() - began_s:.1f} s")
            assert time.monotonic() - began_s < 10.0
            (port,) = many.leaders() - led
            led.add(port)
            many.processes[port].send_signal(how)


def test_workers_share_an_address_and_one_that_is_killed_is_started_again(
    tmp_path: Path, place: StorePlace, tiny_base: Base
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    token = created(tmp_path, tiny_base, 3, *shared)
    with (
        server(tmp_path, *shared, "--port", "0", "--workers", "3") as (parent, url),
        ThreadPoolExecutor(2) as pool,
    ):
        assert len(children_of(parent.pid)) == 3
        port = int(url.rsplit(":", 1)[1])
        devices = witnesses(url, token, ("a", "b"))
        os.kill(children_of(parent.pid)[0], signal.SIGKILL)
        list(pool.map(lambda device: works_through([port], device, 1), devices))
        wait_for(lambda: len(children_of(parent.pid)) == 3)
        parent.terminate()
        assert parent.wait(30) == 0
    assert len(adapter_of(tmp_path, shared)) > 0


def test_a_worker_that_is_killed_while_the_database_is_away_comes_back_with_it(
    tmp_path: Path, place: StorePlace, postgres: Postgres, tiny_base: Base
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    created(tmp_path, tiny_base, 3, *shared)
    with server(tmp_path, *shared, "--port", "0", "--workers", "2") as (parent, url):
        killed, _ = children_of(parent.pid)
        postgres.stop(signal.SIGQUIT)
        try:
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: killed not in children_of(parent.pid))
            time.sleep(6.0)  # others in its place end in turn, each with a line
            assert parent.poll() is None
        finally:
            postgres.start()
        wait_for(lambda: len(children_of(parent.pid)) == 2)
        wait_for(lambda: httpx.get(f"{url}/readyz", timeout=30).text == "ready")
        parent.terminate()
        assert parent.wait(30) == 0


def test_a_worker_that_starts_while_the_database_is_away_comes_with_it_where_another_serves(
    tmp_path: Path, place: StorePlace, postgres: Postgres, tiny_base: Base
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    created(tmp_path, tiny_base, 3, *shared)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    line = [*SMIDGEN, "serve", "--store", str(tmp_path / "store"), *shared, "--workers", "2"]
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen([*line, "--port", str(port)], stderr=log)
    try:
        wait_for(lambda: len(children_of(parent.pid)) == 2)
        _, late = children_of(parent.pid)
        os.kill(late, signal.SIGSTOP)  # before it has opened the store
        wait_for(lambda: httpx.get(f"{url}/readyz", timeout=30).text == "ready")
        postgres.stop(signal.SIGQUIT)
        try:
            os.kill(late, signal.SIGCONT)
            wait_for(lambda: late not in children_of(parent.pid))
            time.sleep(3.0)
            assert parent.poll() is None
        finally:
            postgres.start()
        wait_for(lambda: len(children_of(parent.pid)) == 2)
        wait_for(lambda: httpx.get(f"{url}/readyz", timeout=30).text == "ready")
        parent.terminate()
        assert parent.wait(30) == 0
    finally:
        parent.kill()
        parent.wait()


def test_workers_drain_together_and_a_second_signal_ends_all(
    tmp_path: Path, place: StorePlace, tiny_base: Base
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    created(tmp_path, tiny_base, 3, *shared)
    more = ("--port", "0", "--workers", "2", "--drain", "600")
    with server(tmp_path, *shared, *more) as (parent, url):
        parent.terminate()
        for _ in range(10):  # whichever of them answers
            wait_for(lambda: httpx.get(f"{url}/readyz").text == "stopping", 10.0)
        assert httpx.get(f"{url}/healthz").status_code == 200 and parent.poll() is None
        parent.terminate()
        assert parent.wait(30) == 0


def test_workers_need_a_shared_store(tmp_path: Path, tiny_base: Base) -> None:
    created(tmp_path, tiny_base, 1)
    line = [*SMIDGEN, "serve", "--store", str(tmp_path / "store"), "--workers", "2"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--workers 2: processes share a store on PostgreSQL alone" in done.stderr
