"""A real coordinator on a free port of loopback, in a thread of the test."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.server import Part, listen, serve, url_of
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.connection import http_client, nobody
from smidgen.edge_client.tasks.task import Task
from tests.coordinator.devices import Device, enrol, joined
from tests.coordinator.servers import Buckets, Postgres

TICK_S = 0.1  # what a server sees by itself, it sees soon


@dataclass
class Live:
    """A coordinator that serves one run."""

    store: Store
    service: Service
    http: httpx.Client
    run_id: str
    token: str

    def enrol(self, *names: str) -> list[Device]:
        """Devices that have joined no run yet."""
        return [enrol(self.http, self.token, name) for name in names]

    def join(self, *names: str) -> list[Device]:
        """Devices that are in the run."""
        return [joined(self.http, self.token, name) for name in names]

    def evaluated(self, *names: str) -> list[Device]:
        """Devices that are in the run and have evaluated its first adapter."""
        devices = self.join(*names)
        for device in devices:
            device.do(device.work())
        return devices


@pytest.fixture
def config(tiny_base: Base, hub_task: Task) -> RunConfig:
    return RunConfig("mail", hub_task, base=str(tiny_base.folder), adapter="lora:2", rounds=2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def place(postgres: Postgres, buckets: Buckets, tmp_path: Path) -> StorePlace:
    """A database and a prefix of a bucket that nobody else uses."""
    return StorePlace(tmp_path / "here", postgres.create(), f"s3://{buckets.create()}/blobs")


@contextmanager
def served(store: Store, **told: Any) -> Iterator[tuple[Service, httpx.Client]]:
    """Serve a store; what serves it, and a client with its address.

    `parts` is what is served beside devices: the operator's routes take a tenth of a second.
    """
    options: dict[str, Any] = {"tick_s": TICK_S}
    options |= {name: told.pop(name) for name in ("room", "trusted", "parts") if name in told}
    service = Service(store, time.time(), **told)
    bound, stop, listening = listen("127.0.0.1", 0), threading.Event(), threading.Event()
    url = url_of(bound)
    given = (service, bound, listening.set, stop)
    thread = threading.Thread(target=serve, args=given, kwargs=options)
    thread.start()
    try:
        assert listening.wait(60)  # a busy machine
        with http_client(url, nobody(), timeout=120) as http:
            yield service, http
    finally:
        stop.set()
        thread.join(60)  # whoever still polls
        assert not thread.is_alive()


@contextmanager
def serving(store: Store, config: RunConfig, **told: Any) -> Iterator[Live]:
    created = create_run(store, config, time.time())
    with served(store, **told) as (service, http):
        yield Live(store, service, http, created.run_id, created.token)


@pytest.fixture
def parts() -> tuple[Part, ...]:
    """What a coordinator serves beside devices."""
    return ()


@pytest.fixture
def start(
    tmp_path: Path, config: RunConfig, parts: tuple[Part, ...]
) -> Iterator[Callable[..., Live]]:
    """Start a coordinator on a run with these settings."""
    with ExitStack() as stack:

        def started(**settings: Any) -> Live:
            store = stack.enter_context(closing(Store(tmp_path / "store")))
            run = replace(config, **settings)
            return stack.enter_context(serving(store, run, parts=parts))

        yield started
