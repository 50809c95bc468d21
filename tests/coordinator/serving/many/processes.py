"""Real processes of `serve` that share a fleet, light devices that ask any of them, and what is
compared in the end.
"""

import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from coordinator.rounds.events import Answered
from coordinator.storage.place import StorePlace
from coordinator.storage.store import Store
from edge_client.bases.base import Base
from tests.command_line import smidgen
from tests.coordinator.devices import Device, joined
from tests.coordinator.test_cli import SMIDGEN, created, exported, server

NAMES = ("a", "b", "c")


@dataclass
class Coordinators:
    """Several `serve` of one fleet, each with a folder of its own.

    Attributes:
        folder: All that is written.
        place: The store.
        more: Options of each.
        processes: By the port that each listens on.
        logs: Likewise.
    """

    folder: Path
    place: StorePlace
    more: tuple[str, ...] = ()
    processes: dict[int, "subprocess.Popen[str]"] = field(default_factory=dict)
    logs: dict[int, Path] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--database", self.place.database, "--blobs", self.place.blobs)

    def start(self, port: int = 0) -> None:
        number = port or len(self.processes)
        store = ("--store", str(self.folder / f"machine-{number}"))
        line = [*SMIDGEN, "serve", *store, *self.options, "--port", str(port), *self.more]
        with (self.folder / f"log-{number}").open("a") as log:
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.fullmatch(r"listening on http://\S+:(\d+)\n", said)
        assert found, (said, (self.folder / f"log-{number}").read_text())
        self.processes[int(found[1])] = process
        self.logs[int(found[1])] = self.folder / f"log-{number}"

    def leaders(self) -> set[int]:
        """Ports of those that have ever carried rounds on, by their logs."""
        said = "carries the rounds on now"
        return {port for port, log in self.logs.items() if said in log.read_text()}

    def end(self, port: int, how: int = signal.SIGKILL) -> None:
        process = self.processes[port]
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def coordinators(folder: Path, place: StorePlace, count: int, *more: str) -> Iterator[Coordinators]:
    many = Coordinators(folder, place, more)
    try:
        for _ in range(count):
            many.start()
        yield many
    finally:
        for port in many.processes:
            many.end(port)


@dataclass
class Witness(Device):
    """A device that remembers which updates it was told are safe.

    Attributes:
        acknowledged: Ids of their work.
        refusals: What the coordinator said of those that it did not take.
    """

    acknowledged: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def put(self, work_id: str, body: bytes, digest: str | None = None) -> httpx.Response:
        answer = super().put(work_id, body, digest)
        if answer.status_code == 200 and answer.json()["accepted"]:
            self.acknowledged.append(work_id)
        elif answer.status_code != 200:
            self.refusals.append(f"{answer.status_code}: {answer.text}")
        return answer


def witnesses(url: str, token: str) -> list[Witness]:
    """Devices that are in the run; each brings a connection of its own later."""
    with httpx.Client(base_url=url, timeout=60) as http:
        found = [joined(http, token, name) for name in NAMES]
    return [Witness(one.http, one.key, one.enrolled) for one in found]


def check_counted_once(many: Coordinators, devices: list[Witness]) -> None:
    """What was acknowledged is in the journal, and nothing is there twice."""
    with closing(Store(replace(many.place, folder=many.folder / "looker"))) as store:
        events = store.events(store.runs()[0].run_id)
    answers = [one.work_id for one in events if isinstance(one, Answered)]
    assert len(answers) == len(set(answers))
    acknowledged = {work_id for device in devices for work_id in device.acknowledged}
    assert acknowledged and acknowledged <= set(answers), acknowledged - set(answers)


def works_through(ports: list[int], device: Device, seed: int) -> None:
    """A device behind a proxy: each connection leads to a coordinator that answers."""
    draw, end = random.Random(f"{seed} {device.name}"), time.monotonic() + 800
    while time.monotonic() < end:
        url = f"http://127.0.0.1:{draw.choice(ports)}"
        given = None
        with (
            suppress(httpx.TransportError, AssertionError),  # killed, or 503
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            one = replace(device, http=http)
            given = one.next(2.0)
            if given.work is not None:
                one.do(given.work)
        if given is not None and given.over is not None:
            return
        time.sleep(0.01)
    raise AssertionError("no end")


def adapter_of(folder: Path, options: tuple[str, ...]) -> bytes:
    told = ("--store", str(folder / "looker"), *options, "--out", str(folder / "out"))
    done = smidgen("coordinator", "export", *told)
    assert done.exit_code == 0, done.output
    return (folder / "out" / "adapter_model.safetensors").read_bytes()


def calm(folder: Path, base: Base, rounds: int) -> bytes:
    """The adapter of an undisturbed run on SQLite."""
    folder.mkdir()
    token = created(folder, base, rounds, "--min-clients", str(len(NAMES)))
    with (
        server(folder, "--port", "0") as (_, url),
        httpx.Client(base_url=url, timeout=120) as http,
        ThreadPoolExecutor(len(NAMES)) as pool,
    ):
        devices = [joined(http, token, name) for name in NAMES]
        list(pool.map(Device.until_finished, devices))
    return exported(folder)
