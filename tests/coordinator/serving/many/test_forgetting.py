"""A device is forgotten by any of several coordinators, and no other one goes on with its share."""

import threading
from pathlib import Path

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.serving.server import Part
from smidgen.coordinator.storage.runs import open_orders
from tests.coordinator.devices import joined, wait_for
from tests.coordinator.operator.operators import person
from tests.coordinator.serving.many.conftest import Many, Start
from tests.coordinator.upkeep.test_forgetting import Learner, never_there, work_until


@pytest.fixture
def parts() -> tuple[Part, ...]:
    return (add_operator_routes,)


def states(them: Many) -> list[State]:
    return [one.run(them.created.run_id).state for one in them.services]


def learner(them: Many, name: str) -> Learner:
    known = joined(them.http, them.created.token, name)
    return Learner(known.http, known.key, known.enrolled)


@pytest.mark.slow
def test_all_of_them_go_back_to_before_the_device(
    start: Start, config: RunConfig, tmp_path: Path
) -> None:
    settings = {"rounds": 4, "min_clients": 2, "evaluate_every": 1}
    them = start(3, **settings)
    a, b, c = (learner(them, name) for name in ("a", "b", "c"))
    work_until([a, b, c], lambda: min(one.evaluated for one in states(them)) >= 2)
    boss = person(them.http, them.services[0].store)
    assert len(boss.post(f"/devices/{c.device_id}/forget")["orders"]) == 1
    wait_for(lambda: not open_orders(them.services[0].store))
    wait_for(lambda: all(one.forgets == 1 for one in states(them)))
    assert all(service.fleet.get(c.device_id) for service in them.services)  # that it stays out
    for client in them.clients:
        assert client.get("/v1/work", headers=c.headers).status_code == 401
    threads = [threading.Thread(target=one.until_finished) for one in (a, b)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    wait_for(lambda: all(one.is_finished for one in states(them)))
    alone = never_there(tmp_path / "without", config, **settings)
    assert {one.adapter_sha256 for one in states(them)} == {alone}
