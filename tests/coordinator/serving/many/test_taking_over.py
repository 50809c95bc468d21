"""What one of several coordinators does as it takes the lead, or after it has lost it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smidgen.coordinator.api.serve import Worker
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.rounds.events import Answered, Paused, Resumed, StepOpened
from smidgen.coordinator.serving.ledger import Ledger
from smidgen.coordinator.serving.peer_servers import Neighbours
from smidgen.coordinator.serving.server import Part
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.credentials import add_operator
from smidgen.coordinator.storage.database import Conflict, StorePlace
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway, lack_of
from smidgen.coordinator.storage.runs import add_order, create_run, taken_up
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import Busy
from tests.coordinator.serving.many.conftest import Start


@pytest.fixture
def parts() -> tuple[Part, ...]:
    return (add_operator_routes,)


@pytest.fixture
def stores(place: StorePlace, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """One store, opened on two machines."""
    with ExitStack() as stack:
        there = replace(place, folder=tmp_path / "there")
        first, second = (stack.enter_context(closing(Store(one))) for one in (place, there))
        yield first, second


def test_deadlines_begin_again_where_an_answer_came_in_between(
    stores: tuple[Store, Store], config: RunConfig
) -> None:
    run_id = create_run(stores[0], config, 1.0).run_id
    one, other = (Ledger(store, 1.0) for store in stores)
    (live,) = one.all()
    adapter = live.state.adapter_sha256
    one.append(live, StepOpened("evaluate", 0, 1, adapter, (("w1", "a"), ("w2", "b")), 1.0))
    other.follow()
    one.answer(run_id, Answered("w1", "done", None, 4))
    other.resume(7.0)
    assert stores[0].events(run_id)[-1] == Resumed(7.0)


@pytest.mark.slow
def test_who_does_not_know_a_run_says_of_no_blob_that_it_is_not_needed(
    stores: tuple[Store, Store], config: RunConfig
) -> None:
    create_run(stores[0], config, 1.0)
    ledger = Ledger(stores[0], 1.0)
    assert ledger.kept()
    create_run(stores[1], replace(config, name="another"), 2.0)
    with pytest.raises(Busy):
        ledger.kept()
    ledger.load_new_runs()
    assert ledger.kept()


def test_an_order_that_another_has_carried_out_is_not_carried_out_again(
    stores: tuple[Store, Store], config: RunConfig
) -> None:
    create_run(stores[0], config, 1.0)
    (run,) = stores[0].runs()
    order = add_order(stores[0], run, "pause", None, 2.0)
    one, other = (Ledger(store, 1.0) for store in stores)
    assert other.append(other.all()[0], Paused(3.0), taken_up(order.order_id, 3.0))
    one.follow()
    with pytest.raises(Conflict, match="another process has done so"):
        one.append(one.all()[0], Paused(4.0), taken_up(order.order_id, 4.0))
    assert stores[0].events(run.run_id) == [Paused(3.0)]


def test_members_of_a_new_run_that_cannot_be_read_are_read_at_the_next_look(
    stores: tuple[Store, Store], config: RunConfig
) -> None:
    store, _ = stores

    class Members:
        """Cannot be read once."""

        def __init__(self) -> None:
            self.loaded, self.is_away = list[str](), True

        def load(self, run_id: str, is_finished: bool) -> None:
            if self.is_away:
                self.is_away = False
                raise DatabaseAway("away")
            self.loaded.append(run_id)

        def refresh(self) -> None: ...

    service, members = Service(store, 1.0), Members()
    told: Any = (service.fleet, members, service.presence, service.lives)
    neighbours = Neighbours(store, Ledger(store, 1.0), *told)
    run_id = create_run(store, config, 1.0).run_id
    with pytest.raises(DatabaseAway):
        neighbours.catch_up()
    neighbours.catch_up()
    assert members.loaded == [run_id]


@pytest.mark.slow
def test_a_value_that_postgresql_does_not_take_is_refused_in_one_line(start: Start) -> None:
    many = start(1)
    token = add_operator(many.services[0].store, "viewer", 1.0)
    headers = {"Authorization": f"Bearer {token}"}
    path = f"/v1/operator/runs/{many.created.run_id}/answers"
    answer = many.http.get(path, params={"after": "a\0b"}, headers=headers)
    assert answer.status_code == 422 and "such as the character 0" in answer.json()["detail"]


@pytest.mark.parametrize(("version", "lacks"), [((13, 2), True), ((14, 0), False)])
def test_a_server_that_is_too_old_is_not_taken(version: tuple[int, int], lacks: bool) -> None:
    engine: Any = SimpleNamespace(dialect=SimpleNamespace(server_version_info=version))
    assert ("14 or newer is expected" in lack_of(engine)) == lacks


def test_a_worker_that_says_much_at_its_end_comes_to_it() -> None:
    code = "print('listening on x'); print('y' * 300_000)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = Worker(process)
    assert process.wait(30) == 0
    assert worker.last_words() == "y" * 300_000 + "\n" and worker.is_well
