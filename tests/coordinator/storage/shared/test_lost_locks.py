"""A PostgreSQL that is started again has forgotten who holds the store."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.api.keeping import move
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Finished, Resumed
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway, StoreMoved
from smidgen.coordinator.storage.dialects.sqlite import CLAIMS
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.errors import Failed
from tests.coordinator.conftest import served
from tests.coordinator.servers import Postgres, wait_until

RUN = Run("r1", 1.0, "{}", "b", "/base", "bert", "a" * 64, "secret")


def restart(postgres: Postgres) -> None:
    postgres.stop(signal.SIGQUIT)
    postgres.start()


def is_served(store: Store) -> bool:
    with suppress(DatabaseAway):
        return store.is_served()
    return False


@pytest.mark.slow
def test_who_lost_the_store_to_a_move_writes_and_removes_nothing(
    place: StorePlace, postgres: Postgres, tmp_path: Path
) -> None:
    with closing(Store(place)) as first:
        name = first.put(b"adapter")
        first.add_run(replace(RUN, adapter_sha256=name))
        first.append("r1", 0, Resumed(1.0))
        with first.serving_together():
            restart(postgres)
            move(replace(place, folder=tmp_path / "other"), str(tmp_path / "back"))
            with pytest.raises(StoreMoved, match="was moved to"):
                first.append("r1", 1, Finished(2.0))
            with pytest.raises(StoreMoved, match="was moved to"), first.removing():
                pass
        with pytest.raises(StoreMoved), first.serving_together():
            pass
        assert first.events("r1") == [Resumed(1.0)]
    with closing(Store(tmp_path / "back")) as back:
        assert back.events("r1") == [Resumed(1.0)] and back.read(name) == b"adapter"


@pytest.mark.slow
def test_nothing_refers_to_a_blob_whose_claim_was_lost(
    place: StorePlace, postgres: Postgres
) -> None:
    with closing(Store(place)) as store, closing(Store(place)) as other:
        name = store.put(b"adapter")
        store.add_run(replace(RUN, adapter_sha256=name))
        with store.claiming():
            store.append("r1", 0, Resumed(1.0))  # while it is held
        with store.claiming():
            store.put(b"update")
            restart(postgres)
            with other.removing() as is_held:
                assert is_held  # and removes what no journal speaks of
                with pytest.raises(DatabaseAway):
                    store.append("r1", 1, Resumed(2.0))
            with pytest.raises(DatabaseAway, match="a lock was lost; try again"):
                store.append("r1", 1, Resumed(2.0))
        with store.claiming():
            store.append("r1", 1, Resumed(2.0))
        assert store.events("r1") == [Resumed(1.0), Resumed(2.0)]


@pytest.mark.slow
def test_claims_that_others_let_go_of_meanwhile_are_not_lost(place: StorePlace) -> None:
    with closing(Store(place)) as store:
        name, is_over = store.put(b"adapter"), threading.Event()
        store.add_run(replace(RUN, adapter_sha256=name))

        def claim() -> None:
            while not is_over.is_set():
                with store.claiming():
                    pass

        with ThreadPoolExecutor(3) as pool:
            claims = [pool.submit(claim) for _ in range(3)]
            try:
                with store.claiming():
                    for seq in range(60):
                        store.append("r1", seq, Resumed(float(seq)))
            finally:
                is_over.set()
            for one in claims:
                one.result()


@pytest.mark.slow
def test_who_waits_for_a_lock_hears_that_the_database_went_away(
    place: StorePlace, postgres: Postgres
) -> None:
    def wait(store: Store) -> None:
        with store.claiming():
            raise AssertionError("it is held by another")

    with (
        closing(Store(place)) as store,
        closing(Store(place)) as other,
        ThreadPoolExecutor(1) as pool,
        store.locks.alone(CLAIMS) as is_held,
    ):
        assert is_held
        waits = pool.submit(wait, other)
        time.sleep(0.5)
        restart(postgres)
        with pytest.raises(DatabaseAway):
            waits.result(60)


@pytest.mark.slow
def test_coordinators_hold_the_store_again_once_the_database_is_back(
    place: StorePlace, postgres: Postgres, config: RunConfig, tmp_path: Path
) -> None:
    other = replace(place, folder=tmp_path / "other")
    with closing(Store(place)) as store, closing(Store(other)) as looker:
        create_run(store, config, 1.0)
        with store.serving_together(), served(store) as (service, _):
            wait_until(lambda: service.lead.is_here, "no lead")
            restart(postgres)
            wait_until(lambda: is_served(looker) and service.lead.is_here, "it is not held again")
            with pytest.raises(Failed, match="another coordinator serves"):
                move(other, str(tmp_path / "back"))
            assert not (tmp_path / "back").exists()


@pytest.mark.slow
def test_a_coordinator_says_that_its_store_was_moved(
    place: StorePlace, config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Store(place)) as store:
        create_run(store, config, 1.0)
        service = Service(store, time.time())
        move(replace(place, folder=tmp_path / "other"), str(tmp_path / "back"))
        for _ in range(2):
            service.tick(time.time())
        assert caplog.text.count("the store: stands still") == 1 and "was moved to" in caplog.text
