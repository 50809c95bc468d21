"""A long run over real HTTP: the server's files and memory stay what they were."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import httpx
import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from tests.coordinator.devices import Device, joined
from tests.coordinator.upkeep.stores import names
from tests.end_to_end.disturbed.test_fleet_faults import small_disk

ROUNDS, DEVICES, SETTLED = 200, 20, 30
SERVE = [sys.executable, "-m", "smidgen", "coordinator", "serve", "--port", "0", "--store"]


@dataclass(frozen=True)
class Sample:
    """What a server held once a round had closed.

    Attributes:
        blobs: Files.
        blob_bytes: Their size.
        rss_bytes: Memory of the process.
    """

    blobs: int
    blob_bytes: int
    rss_bytes: int


@contextmanager
def process(folder: Path, log: Path, *options: str) -> Iterator[tuple[int, str]]:
    """A real `serve` with its log; its process id and where it listens."""
    line = [*SERVE, str(folder), *options]
    with log.open("a") as file:
        running = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert running.stdout is not None
        found = re.fullmatch(r"listening on (http://\S+)\n", running.stdout.readline())
        assert found
        yield running.pid, found[1]
        running.send_signal(signal.SIGTERM)
        assert running.wait(90) == 0
    finally:
        running.kill()
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


def sample(folder: Path, pid: int) -> Sample:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    found = []
    for entry in (folder / "blobs").iterdir():
        with suppress(FileNotFoundError):  # the server removes meanwhile
            found.append(entry.stat().st_size)
    return Sample(len(found), sum(found), pages * os.sysconf("SC_PAGE_SIZE"))


def work(device: Device) -> None:
    while (given := device.next(20.0)).over is None:
        if given.work is not None:
            device.do(given.work)


@pytest.mark.slow
def test_two_hundred_rounds_of_twenty_devices_take_no_more_room_than_thirty(
    tmp_path: Path, config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store"
    with closing(Store(folder)) as store:
        many = replace(config, rounds=ROUNDS, min_clients=DEVICES, evaluate_every=10)
        token = create_run(store, replace(many, evaluate_cohort=5), time.time()).token
    samples: dict[int, Sample] = {}
    log, limits = tmp_path / "log", ("--keep-rounds", "10", "--least-free", "0")
    with process(folder, log, *limits) as (pid, url):
        free = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=url, timeout=120, limits=free) as http:
            fleet = [joined(http, token, f"d{number}") for number in range(DEVICES)]
            with ThreadPoolExecutor(DEVICES) as pool:
                working = [pool.submit(work, device) for device in fleet]
                while not all(one.done() for one in working):
                    closed = len(re.findall("training closed after", log.read_text()))
                    if closed not in samples:
                        samples[closed] = sample(folder, pid)
                    time.sleep(0.1)
                for one in working:
                    one.result()
        time.sleep(1.5)
        last = sample(folder, pid)
    late = [samples[index] for index in samples if index >= SETTLED]
    early, end = late[: len(late) // 4], late[-len(late) // 4 :]
    most = max(one.blobs for one in late)
    grown = median(one.rss_bytes for one in end) - median(one.rss_bytes for one in early)
    a_round = grown / (ROUNDS * 3 / 4)
    with capsys.disabled():
        print(
            f"\n{len(samples)} samples, blobs at most {most}, last {last}, first {late[0]}; "
            f"memory grew by {a_round:.0f} bytes a round after round {SETTLED}"
        )
    assert most <= 10 + 6 + 2 * DEVICES and last.blobs <= 10 + 6
    assert max(one.blob_bytes for one in late) < 3 * late[0].blob_bytes + (1 << 20)
    assert a_round < 20_000


@pytest.mark.slow
def test_a_small_disk_fills_up_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path, config: RunConfig
) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    folder = disk / "store"
    with small_disk(disk, "16m"):
        with closing(Store(folder)) as store:
            token = create_run(store, replace(config, rounds=6, min_clients=2), time.time()).token
        with (
            process(folder, log, "--least-free", "4M") as (_, url),
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            a, b = (joined(http, token, name) for name in "ab")
            a.do(a.work())
            b.do(b.work())
            held = a.work()
            filler = disk / "filler"
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - (3 << 20)))
            time.sleep(1.2)
            refused = a.put(held.work_id, a.update(held))
            assert refused.status_code == 507 and refused.headers["Retry-After"]
            filler.unlink()
            time.sleep(1.2)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(work, (a, b)))
        said = log.read_text()
        assert said.count("is full") == 1 and "going on" in said and "Traceback" not in said
        assert len(names(folder)) <= 20 + 6
