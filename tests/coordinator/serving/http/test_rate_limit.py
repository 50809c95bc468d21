"""How often something may happen: failed attempts of an address, requests of a device."""

import ipaddress
from collections.abc import Callable

import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.serving import device_routes, server
from smidgen.coordinator.serving.http.connection_limits import MOST, TokenBuckets
from smidgen.coordinator.serving.server import Part
from tests.coordinator.conftest import Live, served

Start = Callable[..., Live]
FEW = 5


@pytest.fixture
def parts() -> tuple[Part, ...]:
    return (add_operator_routes,)


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TokenBuckets at which a test ends, on a machine of any speed."""
    monkeypatch.setattr(server, "ATTEMPTS", FEW)
    monkeypatch.setattr(server, "ATTEMPTS_PER_S", 0.001)
    monkeypatch.setattr(device_routes, "REQUESTS", FEW)
    monkeypatch.setattr(device_routes, "REQUESTS_PER_S", 0.001)


def test_so_many_at_once_and_then_one_by_one() -> None:
    paces = TokenBuckets(3, 0.5)
    assert [paces.take("a", 0.0) for _ in range(5)] == [0, 0, 0, 2, 2]
    assert not paces.take("b", 0.0)
    assert [paces.take("a", 2.0), paces.take("a", 2.0)] == [0, 2]


def test_what_is_remembered_is_bounded() -> None:
    paces = TokenBuckets(1, 0.001)
    for number in range(3 * MOST):
        assert not paces.take(f"{number}", 0.0)
    assert paces.take(f"{3 * MOST - 1}", 0.0)
    assert not paces.take("0", 0.0)  # forgotten


def test_wrong_keys_and_tokens_are_held_up_and_nobody_else_of_the_address(start: Start) -> None:
    live = start()
    (device,) = live.enrol("d")
    wrong = {"Authorization": f"Bearer {'w' * 40}"}
    told = [live.http.get("/v1/work", headers=wrong) for _ in range(FEW + 3)]
    assert {one.status_code for one in told[:FEW]} == {401}
    assert told[-1].status_code == 429 and int(told[-1].headers["retry-after"]) >= 1
    assert live.http.get("/v1/operator/runs", headers=wrong).status_code == 429
    assert device.poll().status_code == 200
    assert live.enrol("newcomer")[0].poll().status_code == 200


def test_a_device_that_asks_without_a_pause_is_held_up_and_no_other(start: Start) -> None:
    live = start()
    device, other = live.enrol("d", "e")
    told = [device.poll().status_code for _ in range(2 * FEW)]
    assert told == [200] * FEW + [429] * FEW
    assert other.poll().status_code == 200


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_forwarded_address_counts_only_behind_a_proxy_that_was_named(
    start: Start, is_trusted: bool
) -> None:
    trusted = [ipaddress.ip_network("127.0.0.1/32")] if is_trusted else []
    with served(start().store, trusted=trusted) as (_, http):
        told = [
            http.get(
                "/v1/work",
                headers={"Authorization": f"Bearer {'w' * 40}", "X-Forwarded-For": f"10.0.0.{n}"},
            ).status_code
            for n in range(FEW + 3)
        ]
    assert set(told) == ({401} if is_trusted else {401, 429})
