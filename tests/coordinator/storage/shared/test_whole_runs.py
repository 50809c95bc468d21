"""A run over HTTP on PostgreSQL and a bucket: the same bytes as on SQLite and a folder."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from smidgen import serve
from smidgen.coordinator.api.keeping import move
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import Failed
from tests.coordinator.conftest import Live, serving
from tests.coordinator.devices import Device, ask_to_enrol, key_of
from tests.coordinator.servers import Postgres

ROUNDS = 3


def through(live: Live) -> list[str]:
    """All rounds by three devices; each round's adapter."""
    devices = live.join("a", "b", "c")
    with ThreadPoolExecutor(len(devices)) as pool:
        assert all(pool.map(Device.until_finished, devices))
    events = live.store.events(live.run_id)
    return [one.adapter_sha256 or "" for one in events if isinstance(one, StepClosed)]


@pytest.mark.slow
def test_a_whole_run_gives_the_bytes_of_a_run_on_sqlite(
    place: StorePlace, config: RunConfig, tmp_path: Path
) -> None:
    asked = replace(config, rounds=ROUNDS, min_clients=3)
    found = []
    for where in (place, tmp_path / "embedded"):
        with closing(Store(where)) as store, serving(store, asked) as live:
            found.append(through(live))
            assert store.blobs.is_writable()
    assert found[0] == found[1] and len(set(found[0])) == ROUNDS + 1


@pytest.mark.slow
def test_devices_wait_while_the_database_is_started_anew(
    place: StorePlace, config: RunConfig, postgres: Postgres
) -> None:
    with closing(Store(place)) as store, serving(store, replace(config, rounds=1)) as live:
        device = live.join("a")[0]
        postgres.stop()
        try:
            answer = ask_to_enrol(live.http, live.token, "b", key_of("b"))
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert "database does not answer" in answer.json()["detail"]
        finally:
            postgres.start()
        other = live.join("b")[0]
        for one in (device, other):
            assert one.next(50.0).waiting is None


@pytest.mark.slow
def test_a_second_coordinator_serves_too_and_nobody_moves_the_store_meanwhile(
    place: StorePlace, tmp_path: Path
) -> None:
    Store(place).close()
    other = replace(place, folder=place.folder / "other")
    with serve(place, port=0) as first, serve(other, port=0) as second:
        assert httpx.get(f"{first.url}/readyz").text == httpx.get(f"{second.url}/readyz").text
        with pytest.raises(Failed, match="another coordinator serves"):
            move(place, str(tmp_path / "new"))
    move(place, str(tmp_path / "new"))
