"""A store on a real PostgreSQL and in a real bucket; each test has its own."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store


@pytest.fixture
def store(place: StorePlace) -> Iterator[Store]:
    with closing(Store(place)) as opened:
        yield opened
