import time
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from smidgen.edge_client.client.transport import (
    FRESH_S,
    AddressError,
    Coordinator,
    Refused,
    Unreachable,
    patiently,
)
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.wire import messages
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.tensors import sha256
from tests.edge_client.client.servers import Answer, Relay, http_server
from tests.edge_client.client.terms import over
from tests.processes import free_port

BODY = bytes(range(256)) * 400


def test_the_kernel_counts_the_bytes_that_a_relay_sees() -> None:
    receipt = messages.encode(messages.Receipt(True))

    def answer(method: str, path: str, body: bytes) -> Answer:
        return (200, receipt) if method == "PUT" else (200, BODY)

    with http_server(answer) as url:
        relay = Relay(urlsplit(url).port or 0)
        coordinator = Coordinator(f"http://127.0.0.1:{relay.port}", "key")
        meter = WorkMeter(coordinator.traffic)
        coordinator.adapter(sha256(BODY), meter)
        coordinator.upload("w", BODY, meter)
        cost = meter.cost()
        coordinator.close()
        assert (cost.tcp_up_bytes, cost.tcp_down_bytes) == (relay.bytes_up, relay.bytes_down)
        assert (cost.payload_up_bytes, cost.payload_down_bytes) == (len(BODY), len(BODY + receipt))
        assert cost.requests == 2
        assert 1 <= cost.connections <= 2  # the test's server closes each
        relay.close()


def test_a_damaged_download_is_refused() -> None:
    with http_server(lambda *_: (200, BODY[:-1] + b"x")) as url:
        coordinator = Coordinator(url)
        with pytest.raises(messages.WireError, match="arrived damaged"):
            coordinator.adapter(sha256(BODY), WorkMeter())
        coordinator.close()


def test_what_came_with_a_receipt_is_not_asked_for_while_it_is_fresh() -> None:
    idle = messages.Next(waiting=messages.Waiting("idle"))
    asked: list[str] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        asked.append(f"{method} {path}")
        time.sleep(0.2)
        given = messages.Receipt(True, next=idle) if method == "POST" else idle
        return 200, messages.encode_brief(given)

    with http_server(answer) as url, closing(Coordinator(url, life="l")) as coordinator:
        for work_id, pause_s in (("v", 0.0), ("w", FRESH_S)):  # who pauses asks again
            coordinator.report(messages.Report(work_id, "done"), WorkMeter(), 25.0)
            time.sleep(pause_s)
            meter = WorkMeter()
            assert coordinator.next_work(25.0, meter) == idle
            assert meter.cost().phases_s.get("wait", 0.0) >= (0.0 if pause_s else 0.2)
    reported = [f"POST /v1/work/{work_id}/report?wait_s=25&life=l" for work_id in "vw"]
    assert asked == [*reported, "GET /v1/work?wait_s=25&life=l"]


def test_work_waiting_and_the_end_of_a_run_are_told_apart() -> None:
    said = [
        messages.Next(waiting=messages.Waiting("waiting", "mail", 1, 3, 1, 2)),
        messages.Next(over=over("a" * 64)),
    ]
    paths: list[str] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        paths.append(path)
        return 200, messages.encode(said[len(paths) - 1])

    with http_server(answer) as url:
        coordinator = Coordinator(url)
        assert [coordinator.next_work(wait_s, WorkMeter()) for wait_s in (0, 2.5)] == said
        coordinator.close()
    assert paths == ["/v1/work?wait_s=0", "/v1/work?wait_s=2.5"]


def test_how_a_device_stands_to_a_run_goes_to_that_run_whatever_it_is_called() -> None:
    heard: list[tuple[str, bytes]] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        heard.append((f"{method} {path}", body))
        return 200, messages.encode(messages.Receipt(True))

    with http_server(answer) as url:
        coordinator = Coordinator(url)
        assert coordinator.membership("a/../b", Membership("declined", "base")).accepted
        coordinator.close()
    body = b'{"failure":"base","state":"declined"}'
    assert heard == [("POST /v1/runs/a%2F..%2Fb/membership", body)]


def test_a_refusal_carries_the_coordinators_reason() -> None:
    with http_server(lambda *_: (401, b'{"detail": "unknown key"}')) as url:
        coordinator = Coordinator(url)
        with pytest.raises(Refused, match="unknown key"):
            coordinator.next_work(0, WorkMeter())
        coordinator.close()


def test_an_upload_survives_cut_connections_and_a_failing_server() -> None:
    seen: list[bytes] = []
    receipt = messages.encode(messages.Receipt(True))

    def answer(method: str, path: str, body: bytes) -> Answer:
        seen.append(body)
        if len(seen) == 1:
            relay.cut()
        return (500, b"") if len(seen) == 2 else (200, receipt)

    with http_server(answer) as url:
        relay = Relay(urlsplit(url).port or 0)
        coordinator = Coordinator(f"http://127.0.0.1:{relay.port}")
        taken = patiently(lambda: coordinator.upload("w", BODY, WorkMeter()), 20.0)
        coordinator.close()
        relay.close()
    assert taken.accepted and seen == [BODY, BODY, BODY]


def test_nobody_there_is_told_after_the_patience() -> None:
    coordinator = Coordinator(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="no answer from"):
        patiently(lambda: coordinator.next_work(0, WorkMeter()), 0.5)
    coordinator.close()


@pytest.mark.parametrize("url", ["localhost:8700", "ftp://host", "http://", "http://[::1"])
def test_a_url_that_is_none_says_what_is_expected(url: str) -> None:
    with pytest.raises(AddressError, match="--coordinator"):
        Coordinator(url)
