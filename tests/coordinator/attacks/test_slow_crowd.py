"""5,000 slow connections beside 200 devices that work, all from one address; figures are printed.

Quiet and under abuse in one run, with the same devices and connections. What is on the same two
cores decides the times, so it runs where `SMIDGEN_SLOW_CROWD_S` asks for it; 200 slow connections
are tried each time in `test_slow_strangers.py`.
"""

import asyncio
import itertools
import json
import os
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")

from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.profiling.fleet.device import Connection, Device, LoadLog
from smidgen.profiling.fleet.measure import ALONE, COORDINATOR, Load, create, serve
from smidgen.profiling.fleet.run import Met, ProcessWatch, latency
from smidgen.profiling.instruments.child import running
from smidgen.profiling.instruments.environment import find_base

DEVICES = 200
PHASE_S = float(os.environ.get("SMIDGEN_SLOW_CROWD_S", "120"))
CROWD = int(os.environ.get("SMIDGEN_SLOW_CROWD", "5000"))
ROUTES = ("poll", "adapter", "update", "report")


async def honest(url: str, ca: Path, token: str, base_id: str, crowd: object) -> list[Met]:
    """The devices' two phases: what they met in each."""
    book = LoadLog(lambda *_, **__: None)
    trust = ssl.create_default_context(cafile=str(ca))

    def connection(headers: Mapping[str, str]) -> Connection:
        return Connection(url, trust, headers, 60.0)

    gate = asyncio.Semaphore(32)
    enrolled = asyncio.Semaphore(0)

    async def live(number: int) -> None:
        device = Device(connection, f"device-{number}", base_id, book)
        try:
            async with gate:
                await device.enrol(token, {})
            enrolled.release()
            await device.take_part()
        finally:
            device.close()

    tasks = [asyncio.create_task(live(number)) for number in range(DEVICES)]
    for _ in range(DEVICES):
        await enrolled.acquire()
    met = []
    for begin in (None, crowd):
        await asyncio.sleep(15)  # until all is under way
        book.met.seconds = {}
        if callable(begin):
            begin()
            await asyncio.sleep(PHASE_S / 2)
        await asyncio.sleep(PHASE_S)
        met.append(replace(book.met, errors=dict(book.met.errors)))
    while living := [task for task in tasks if not task.done()]:  # one may have missed it
        for task in living:
            task.cancel()
        await asyncio.wait(living, timeout=1.0)
    return met


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    "SMIDGEN_SLOW_CROWD_S" not in os.environ,
    reason="it compares times, so it needs a machine for itself: set SMIDGEN_SLOW_CROWD_S=120",
)
def test_no_honest_request_fails_beside_five_thousand_slow_connections(tmp_path: Path) -> None:
    base = find_base(EMBEDDED, False, None, 0)
    load = Load(base, "lora:2", DEVICES, 50, 100_000, 900.0)
    token = create(tmp_path, load)
    store = tmp_path / "store"
    with running(tmp_path / "logs") as processes:
        url = serve(processes, store, ALONE)
        port = urlsplit(url).port
        log = processes.log(COORDINATOR)
        quiet_bytes = 0
        with ProcessWatch(processes.running[COORDINATOR].pid, store, {}) as watch:

            def crowd() -> None:
                nonlocal quiet_bytes
                quiet_bytes = log.stat().st_size
                command = [sys.executable, "-m", "tests.coordinator.attacks.slow_crowd"]
                processes.start("crowd", [*command, str(port), str(CROWD)], {})

            quiet, abused = asyncio.run(
                honest(url, store / "tls" / "ca.pem", token, base.base_id, crowd)
            )
        said = log.read_bytes()[quiet_bytes:]
    end_s = watch.samples[-1].at_s
    late = [one for one in watch.samples if one.at_s > end_s - PHASE_S]
    halves = [late[: len(late) // 2], late[len(late) // 2 :]]
    usual = [median(one.rss_bytes for one in half) for half in halves]  # it goes up and down
    figures = {
        route: [
            {"count": one.count, "p50_ms": round(one.p50_s * 1e3), "p99_ms": round(one.p99_s * 1e3)}
            for one in (latency(met.seconds.get(route, [])) for met in (quiet, abused))
        ]
        for route in ROUTES
    }
    growth = (usual[1] - usual[0]) / 2**20
    own = [line for line in said.splitlines() if b"device-" not in line]
    print(json.dumps({"quiet, abused": figures, "load": os.getloadavg()}))
    print(
        f"RSS {usual[0] / 2**20:.0f} MiB, {growth:+.1f} MiB from half to half; open files at most"
    )
    print(f"{max(one.open_files for one in late)}; log {len(said)} bytes, {len(own)} lines")
    assert max(one.open_files for one in late) > DEVICES + 300  # the crowd is there
    assert not abused.errors and not abused.held_back, (abused.errors, abused.held_back)
    updates = [len(met.seconds["update"]) for met in (quiet, abused)]
    assert 3 * updates[1] >= updates[0] > 0, updates  # nobody who is not called fails
    assert len(said) < 1_000_000
    assert growth < 8
    everything = [
        latency(list(itertools.chain(*(met.seconds.get(route, []) for route in ROUTES))))
        for met in (quiet, abused)
    ]
    print(f"all: p99 {everything[0].p99_s:.3f} s quiet, {everything[1].p99_s:.3f} s under abuse")
    assert everything[1].p99_s <= 3 * everything[0].p99_s
    assert time.monotonic() > end_s
