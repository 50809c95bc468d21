"""A coordinator with its page, an operator's and a viewer's token."""

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

from smidgen.coordinator.api.ready import parts
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.server import listen, serve, url_of
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.credentials import add_operator
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.client.connection import http_client, nobody
from tests.coordinator.conftest import TICK_S
from tests.coordinator.devices import Device, enrol, joined


@dataclass
class Served:
    """A coordinator with a page that serves one run."""

    url: str
    store: Store
    service: Service
    http: httpx.Client
    run_id: str
    token: str
    operator: str
    viewer: str

    def join(self, *names: str) -> list[Device]:
        """Devices that are in the run."""
        return [joined(self.http, self.token, name) for name in names]

    def enrol(self, name: str, **more: Any) -> Device:
        return enrol(self.http, self.token, name, **more)

    def bearer(self, token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}


@contextmanager
def serving(store: Store, config: RunConfig, port: int = 0) -> Iterator[Served]:
    created = create_run(store, config, time.time())
    tokens = [add_operator(store, role, time.time()) for role in ("operator", "viewer")]
    service = Service(store, time.time())
    bound, stop, listening = listen("127.0.0.1", port), threading.Event(), threading.Event()
    told = {"parts": parts(), "tick_s": TICK_S}
    thread = threading.Thread(target=serve, args=(service, bound, listening.set, stop), kwargs=told)
    url = url_of(bound)
    thread.start()
    try:
        assert listening.wait(60)
        with http_client(url, nobody(), timeout=120) as http:
            yield Served(url, store, service, http, created.run_id, created.token, *tokens)
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def start(tmp_path: Path, config: RunConfig) -> Iterator[Callable[..., Served]]:
    """Start a coordinator with its page, on a run with these settings."""
    with ExitStack() as stack:

        def started(**settings: Any) -> Served:
            store = stack.enter_context(closing(Store(tmp_path / "store")))
            return stack.enter_context(serving(store, replace(config, **settings)))

        yield started
