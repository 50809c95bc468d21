"""The device's transport and the coordinator's routes, over connections that are reset."""

import math
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("fastapi")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from smidgen.edge_client.client.connection import Unreachable, patiently
from smidgen.edge_client.client.transport import Coordinator
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.wire.tensors import sha256
from tests.coordinator.devices import wait_for
from tests.coordinator.serving.http.relays import cutting, now_and_then, once
from tests.coordinator.serving.small_server import SmallServer, serving

BODY = random.Random(3).randbytes(1_200_007)
ONE_SERVER = [HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    with serving(tmp_path_factory.mktemp("small")) as small:
        yield small


def test_in_the_good_case_each_way_is_one_request(server: SmallServer) -> None:
    server.forget()
    name = server.offer(BODY)
    with closing(Coordinator(server.url)) as coordinator:
        meter = WorkMeter(coordinator.traffic)
        assert coordinator.adapter(name, meter, len(BODY)) == BODY
        assert coordinator.upload("good", BODY, meter).accepted
        cost = meter.cost()
    assert server.requests == [("GET", ""), ("PUT", "")] and cost.requests == 2
    framing = (cost.tcp_up_bytes or 0) + (cost.tcp_down_bytes or 0) - 2 * len(BODY)
    assert framing < 1500


DIRECTIONS: st.SearchStrategy[Literal["up", "down"]] = st.sampled_from(["up", "down"])


@settings(suppress_health_check=ONE_SERVER)
@given(DIRECTIONS, st.integers(1, len(BODY) + 400))
@example("up", 1)
@example("up", len(BODY) + 150)
@example("down", 1)
@example("down", 200)  # the receipt is cut: the update counts already
def test_an_upload_cut_anywhere_counts_once_and_what_arrived_is_not_sent_again(
    server: SmallServer, direction: Literal["up", "down"], at: int
) -> None:
    server.forget()
    with (
        cutting(server.port, once(direction, at)) as relay,
        closing(Coordinator(relay.url)) as coordinator,
    ):
        assert patiently(lambda: coordinator.upload("w", BODY, WorkMeter()), 60.0).accepted
        assert server.counted == {"w": 1} and server.body_of("w") == BODY
    parts = [part for method, part in server.requests if method == "PUT"]
    assert server.received == len(BODY)  # no byte twice
    assert len(parts) <= 2 and (relay.cuts or parts == [""])
    last, whole = len(BODY) - 1, len(BODY)
    assert all(re.fullmatch(rf"(bytes (\d+-{last}|\*)/{whole})?", part) for part in parts)


@settings(suppress_health_check=ONE_SERVER)
@given(DIRECTIONS, st.integers(1, len(BODY) + 400))
@example("down", 1)
@example("down", len(BODY) + 100)
@example("up", 60)
def test_a_download_cut_anywhere_goes_on_and_is_the_same(
    server: SmallServer, direction: Literal["up", "down"], at: int
) -> None:
    server.forget()
    name = server.offer(BODY)
    with (
        cutting(server.port, once(direction, at)) as relay,
        closing(Coordinator(relay.url)) as coordinator,
    ):
        meter = WorkMeter(coordinator.traffic)
        assert patiently(lambda: coordinator.adapter(name, meter, len(BODY)), 60.0) == BODY
    assert meter.payload_down_bytes == len(BODY)  # no byte twice
    assert 1 <= len(server.requests) <= 2
    if relay.cuts and direction == "down" and at > 1000:
        (_, first), (_, rest) = server.requests
        assert first == "" and re.fullmatch(r"bytes=\d+-", rest)


def test_an_earlier_lifes_upload_goes_on(server: SmallServer) -> None:
    server.forget()
    body = random.Random(4).randbytes(1_000_000)

    def some_is_kept() -> bool:  # a piece is written before more than 64 KiB behind it are read
        return server.received > 256 << 10

    with cutting(server.port, once("up", 900_000), lambda: wait_for(some_is_kept)) as relay:
        with closing(Coordinator(relay.url)) as first, pytest.raises(Unreachable):
            first.upload("life", body, WorkMeter())
        with closing(Coordinator(relay.url)) as second:
            assert second.upload("life", body, WorkMeter(), is_begun=True).accepted
    assert [method for method, _ in server.requests] == ["PUT", "HEAD", "PUT"]
    assert server.requests[2][1].startswith("bytes ") and server.body_of("life") == body


@pytest.mark.fault
def test_one_percent_of_resets_loses_and_doubles_nothing(seed: int, tmp_path: Path) -> None:
    """With the seed that is printed in SMIDGEN_FAULT_SEED, the cuts fall on the same bytes."""
    draw = random.Random(seed)
    bodies = [draw.randbytes(200_000 + draw.randrange(200_000)) for _ in range(24)]
    with (
        serving(tmp_path) as server,
        cutting(server.port, now_and_then(0.01, 4096, draw)) as relay,
    ):
        names = [server.offer(body[::-1]) for body in bodies]

        def both(number: int) -> None:
            with closing(Coordinator(relay.url)) as one:
                move(number, one)

        def move(number: int, one: Coordinator) -> None:
            fetched = patiently(lambda: one.adapter(names[number], WorkMeter()), math.inf)
            assert fetched == bodies[number][::-1]
            work_id = f"work-{number}"
            told = patiently(lambda: one.upload(work_id, bodies[number], WorkMeter()), math.inf)
            assert told.accepted

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(both, range(len(bodies))))
        assert relay.cuts > 0
        assert server.counted == {f"work-{number}": 1 for number in range(len(bodies))}
        for number, body in enumerate(bodies):
            assert sha256(server.body_of(f"work-{number}")) == sha256(body)
        assert list(server.uploads.iterdir()) == []
