"""Several coordinators of one fleet, and devices that ask another one each time."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import httpx
import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.server import Part
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.runs import NewRun, create_run
from smidgen.coordinator.storage.store import Store
from tests.coordinator.conftest import served


class AnyOf:
    """What devices ask by: each request goes to another coordinator, drawn by chance.

    Args:
        clients: Of the coordinators.
        seed: What it draws from.
    """

    def __init__(self, clients: list[httpx.Client], seed: int) -> None:
        self._clients, self._draw = clients, random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draw.choice(self._clients), name)


@dataclass
class Many:
    """Coordinators of one fleet.

    Attributes:
        services: Of each.
        clients: Of each.
        http: Asks any of them.
        created: The run.
    """

    services: list[Service]
    clients: list[httpx.Client]
    http: httpx.Client
    created: NewRun


@contextmanager
def many(
    place: StorePlace, config: RunConfig, count: int, seed: int, parts: tuple[Part, ...] = ()
) -> Iterator[Many]:
    with closing(Store(place)) as store:
        created = create_run(store, config, 1.0)
    with ExitStack() as stack:
        services, clients = [], []
        for number in range(count):
            folder = place.folder.with_name(f"machine-{number}")
            store = stack.enter_context(closing(Store(replace(place, folder=folder))))
            stack.enter_context(store.serving_together())
            service, http = stack.enter_context(served(store, parts=parts))
            services.append(service)
            clients.append(http)
        yield Many(services, clients, cast(httpx.Client, AnyOf(clients, seed)), created)


Start = Callable[..., Many]


@pytest.fixture
def start(
    place: StorePlace, config: RunConfig, seed: int, parts: tuple[Part, ...]
) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(count: int, **settings: Any) -> Many:
            asked = replace(config, **settings)
            return stack.enter_context(many(place, asked, count, seed, parts))

        yield started
