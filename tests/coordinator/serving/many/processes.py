"""Real processes of `serve` that share a fleet, light devices that ask any of them, and what is
compared in the end.
"""

import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from smidgen.coordinator.rounds.events import Answered, StepClosed, StepOpened
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.devices import memberships_of
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Over
from smidgen.edge_client.wire.tensors import sha256
from tests.command_line import smidgen
from tests.coordinator.devices import Device, joined
from tests.coordinator.servers import PASSWORD
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
        taken: SHA-256 of the finished adapter, which it has taken home.
    """

    acknowledged: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def take_home(self, over: Over) -> None:
        """Fetch the finished adapter and say so; as a client does, until it is heard."""
        if over.adapter_sha256 not in self.taken:
            answer = self.http.get(f"/v1/adapters/{over.adapter_sha256}", headers=self.headers)
            assert answer.status_code == 200, answer.text
            self.taken.append(sha256(answer.content))
        assert self.tell(over.run_id, Membership("home")).status_code == 200

    def put(self, work_id: str, body: bytes, digest: str | None = None) -> httpx.Response:
        answer = super().put(work_id, body, digest)
        if answer.status_code == 200 and answer.json()["accepted"]:
            self.acknowledged.append(work_id)
        elif answer.status_code != 200:
            self.refusals.append(f"{answer.status_code}: {answer.text}")
        return answer


def witnesses(url: str, token: str, names: Sequence[str] = NAMES) -> list[Witness]:
    """Devices that are in the run; each brings a connection of its own later."""
    with httpx.Client(base_url=url, timeout=60) as http:
        found = [joined(http, token, name) for name in names]
    return [Witness(one.http, one.key, one.enrolled) for one in found]


def check_counted_once(many: Coordinators, devices: list[Witness]) -> None:
    """What was acknowledged is in the journal, nothing counts twice, and every device is at home.

    The coordinators have ended. The store is sound, and no secret stands in a log.
    """
    with closing(Store(replace(many.place, folder=many.folder / "looker"))) as store:
        (run,) = store.runs()
        check_journal(store, {work_id for device in devices for work_id in device.acknowledged})
        events = store.events(run.run_id)
        adapters = [one.adapter_sha256 for one in events if isinstance(one, StepClosed)]
        last = [sha256 for sha256 in adapters if sha256 is not None][-1]
        standings = [memberships_of(store.database, one.device_id) for one in devices]
    for device in devices:
        assert device.taken == [last], device.name
    assert {one[run.run_id].membership.state for one in standings} == {"home"}
    told = ("--store", str(many.folder / "looker"), *many.options)
    assert (done := smidgen("coordinator", "verify", *told)).exit_code == 0, done.output
    logs = "".join(log.read_text() for log in many.logs.values())
    assert not [one.name for one in devices if one.key in logs] and PASSWORD not in logs


def check_journal(store: Store, acknowledged: set[str]) -> None:
    """All of these updates count in the store's only run, each once, in a round that took it."""
    (run,) = store.runs()
    events = store.events(run.run_id)
    answers = [one.work_id for one in events if isinstance(one, Answered)]
    assert len(answers) == len(set(answers))
    assert acknowledged and acknowledged <= set(answers), acknowledged - set(answers)
    members = [member for one in events if isinstance(one, StepOpened) for member in one.members]
    assert set(answers) <= {work_id for work_id, _ in members}
    trained = Counter(
        (one.round_index, device_id)
        for one in events
        if isinstance(one, StepOpened) and one.kind == "train"
        for work_id, device_id in one.members
        if work_id in set(answers)
    )
    assert set(trained.values()) == {1}, trained


def works_through(ports: list[int], device: Witness, seed: int) -> None:
    """A device behind a proxy: each connection leads to a coordinator that answers."""
    draw, end = random.Random(f"{seed} {device.name}"), time.monotonic() + 800
    while time.monotonic() < end:
        url = f"http://127.0.0.1:{draw.choice(ports)}"
        with (
            suppress(httpx.TransportError, AssertionError),  # killed, or 503
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            one = replace(device, http=http)
            given = one.next(2.0)
            if given.work is not None:
                one.do(given.work)
            if given.over is not None:
                one.take_home(given.over)
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
