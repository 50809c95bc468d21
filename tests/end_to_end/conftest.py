"""A small real run: tiny base, a few texts per device, real processes on loopback."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.coordinator.rounds.events import Event
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.state import ClientState, Identity
from smidgen.simulation.demo.setting import Fleet, fleet
from tests import command_line
from tests.coordinator.devices import key_of

CLIENTS = ("a", "b")
EPOCHS = 40  # long enough to be caught in the middle
ANY_DISK = ("--least-free", "0")  # how much is free here is no part of a test
TASK = """
name = "hub"
labels = ["security", "weather", "family"]
patterns = ["{text} . this is about [MASK] ."]
"""
TEXTS = {
    "security": ["the front door opened", "somebody at the gate", "door camera saw a person"],
    "weather": ["storm at nine", "rain today", "rain will be there at seven"],
    "family": ["dinner with grandma", "bring the cake home please", "grandma is on the way home"],
}


def write_labelled(folder: Path, name: str) -> None:
    """A device's labelled texts; each device holds other ones, and `b` none to test on."""
    turn = sum(map(ord, name))
    rows = [
        (texts[(turn + place) % 3], label) for place, (label, texts) in enumerate(TEXTS.items())
    ]
    for part in ("labelled", "test") if name != "b" else ("labelled",):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(rows * 2)


@dataclass
class Scene:
    """One run's files and processes.

    Attributes:
        folder: All that is written.
        base: The base in use.
        fleet: Its processes.
        task: The text of its `task.toml`.
        write: Writes a device's texts into a folder of its own.
    """

    folder: Path
    base: Base
    fleet: Fleet
    token: str = ""
    line: str = ""
    run_id: str = ""
    task: str = TASK
    write: Callable[[Path, str], None] = write_labelled

    def smidgen(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end."""
        line = [sys.executable, "-m", "smidgen", *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=check, timeout=120)

    def coordinator_json(self, command: str, *arguments: str) -> dict[str, Any]:
        """Run a `smidgen coordinator` command on this scene's store, in this process; its JSON."""
        store = ("--store", str(self.folder / "store"))
        done = command_line.smidgen("coordinator", command, *store, *arguments, "--json")
        assert done.exit_code == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def create(self, rounds: int, clients: int, epochs: int, *arguments: str) -> None:
        """Create the run."""
        (self.folder / "task.toml").write_text(self.task)
        created = self.coordinator_json(
            "create",
            *("--task", str(self.folder / "task.toml"), "--base", str(self.base.folder)),
            *("--adapter", "lora:2", "--rounds", str(rounds), "--min-clients", str(clients)),
            *("--epochs", str(epochs), "--batch", "4", "--lr", "0.01", "--tokens", "32"),
            *arguments,
        )
        self.token, self.run_id = created["token"], created["run_id"]
        self.line = created["line"]

    def fixed_deadlines(self) -> str:
        """A run file by which no step waits less than its deadline, whatever slows answers down."""
        file = self.folder / "fixed.toml"
        file.write_text("adaptive_deadline = false\n")
        return str(file)

    def serve(self, port: int = 0, *arguments: str) -> str:
        """Start the coordinator; its URL."""
        log = self.fleet.logs / "coordinator.log"
        log.unlink(missing_ok=True)
        store = ("--store", str(self.folder / "store"))
        self.fleet.start(
            "coordinator",
            [
                "coordinator",
                "serve",
                *store,
                "--port",
                str(port),
                "--exit-when-finished",
                *ANY_DISK,
                *arguments,
            ],
        )
        return self.fleet.url_of("coordinator")

    def data(self, name: str) -> Path:
        """A device's texts."""
        folder = self.folder / "data" / name
        folder.mkdir(parents=True, exist_ok=True)
        self.write(folder, name)
        return folder

    def client(self, name: str, url: str, *arguments: str) -> None:
        """Start a client that ends with its run; with a key that is the same in each test."""
        folder = self.folder / "state" / name
        state = ClientState(folder)
        if state.identity() is None:
            state.keep_identity(Identity("", key_of(name)))
        self.start_client(name, url, "--until", "finished", *arguments)

    def start_client(self, name: str, url: str, *arguments: str) -> None:
        """Start a client as its owner would."""
        where = ("--coordinator", url, "--token", self.token, "--data", str(self.data(name)))
        what = ("--base", str(self.base.folder), "--name", name)
        state = ("--state", str(self.folder / "state" / name))
        self.fleet.start(name, ["client", "run", *where, *what, *state, *arguments])

    def journal(self) -> list[Event]:
        """The run's events so far."""
        with closing(Store(self.folder / "store")) as store:
            return store.events(self.run_id)

    def log(self, name: str) -> str:
        """What a process said so far."""
        return (self.fleet.logs / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        """`kill -9` a process and forget it."""
        process = self.fleet.processes.pop(name)
        process.kill()
        process.wait()

    def end(self, name: str, within_s: float = 60.0) -> int:
        """SIGTERM a process and forget it; its exit code."""
        process = self.fleet.processes.pop(name)
        process.terminate()
        return process.wait(within_s)

    def finish(self, within_s: float = 240.0) -> None:
        """Wait until every process ended by itself."""
        wait_for(
            lambda: all(p.poll() is not None for p in self.fleet.processes.values()),
            self.fleet.check,
            within_s,
        )
        self.fleet.check()

    def adapter(self) -> bytes:
        """The exported adapter's bytes."""
        out = self.folder / "adapter"
        self.coordinator_json("export", "--out", str(out))
        return (out / "adapter_model.safetensors").read_bytes()


def wait_for(
    done: Callable[[], bool], check: Callable[[], None] = lambda: None, within_s: float = 180.0
) -> None:
    """Wait for a condition; fail the test after a while."""
    end = time.monotonic() + within_s
    while not done():
        check()
        assert time.monotonic() < end, "took too long"
        time.sleep(0.05)


@pytest.fixture
def scene(tmp_path: Path, tiny_base: Base) -> Iterator[Scene]:
    with fleet(tmp_path / "logs", cores_each=1) as processes:
        yield Scene(tmp_path, tiny_base, processes)


@pytest.fixture
def other_scene(tmp_path: Path, tiny_base: Base) -> Iterator[Scene]:
    with fleet(tmp_path / "other" / "logs", cores_each=1) as processes:
        yield Scene(tmp_path / "other", tiny_base, processes)


@pytest.fixture(scope="session")
def undisturbed_with(
    tmp_path_factory: pytest.TempPathFactory, tiny_base: Base
) -> Callable[[str], bytes]:
    """By engine, the last adapter of two rounds of all `CLIENTS` that nothing disturbs."""

    @cache
    def adapter(engine: str) -> bytes:
        folder = tmp_path_factory.mktemp("undisturbed")
        with fleet(folder / "logs", cores_each=1) as processes:
            scene = Scene(folder, tiny_base, processes)
            scene.create(2, len(CLIENTS), EPOCHS)
            url = scene.serve()
            for name in CLIENTS:
                scene.client(name, url, "--engine", engine)
            scene.finish()
            return scene.adapter()

    return adapter
