"""The relay: its counts are the bytes that were sent, and its delay is distance, not a pause."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from smidgen.profiling.wire.relay import PIECE_BYTES, Exchange, Relay, RelayError, relaying
from smidgen.profiling.wire.run import passed

MEGABYTES = 3_145_728
RTT_S = 0.05


def answer(connection: socket.socket) -> None:
    """Answer every request with the bytes of its body, on one connection."""
    with connection, connection.makefile("rb") as said:
        while head := said.readline():
            length = 0
            while (line := said.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            body = said.read(length)
            assert head.startswith((b"PUT", b"GET"))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)


@contextmanager
def echo() -> Iterator[int]:
    """A server that gives back what it is sent; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def relay(request: pytest.FixtureRequest) -> Iterator[Relay]:
    rtt_s = getattr(request, "param", 0.0)
    with echo() as port, relaying("127.0.0.1", port, rtt_s) as running:
        yield running


def counted(relay: Relay, requests: int) -> list[Exchange]:
    """The exchanges, once the last byte of so many has been seen."""
    end = time.monotonic() + 60.0
    while len(found := relay.exchanges()) < requests or not found[-1].bytes_down:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_known_bytes_are_counted_in_each_direction(relay: Relay) -> None:
    sent = b"PUT /a?b=1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
    with socket.create_connection(("127.0.0.1", relay.port)) as raw:
        raw.sendall(sent)
        came = raw.recv(1000)
    assert came == b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    [one] = counted(relay, 1)
    assert (one.method, one.path, one.key) == ("PUT", "/a?b=1", "")
    assert (one.bytes_up, one.bytes_down) == (len(sent), len(came))


def test_each_request_of_a_connection_is_one_exchange(relay: Relay) -> None:
    body = bytes(range(256)) * 4096  # a megabyte, in many pieces
    with httpx.Client(base_url=relay.url) as http:
        for _ in range(3):
            assert http.put("/x", content=body).content == body
        http.get("/y")
    found = counted(relay, 4)
    assert [one.path for one in found] == ["/x", "/x", "/x", "/y"]
    assert found[0].bytes_up == found[1].bytes_up > len(body)
    assert {one.connection for one in found} == {found[0].connection}


def test_a_client_is_known_by_its_key_on_every_connection(relay: Relay) -> None:
    for _ in range(2):
        httpx.get(relay.url, headers={"Authorization": "Bearer of-a-device"})
    first, second = counted(relay, 2)
    assert first.key == second.key == "Bearer of-a-device"
    assert first.connection != second.connection


def test_what_is_not_http_is_counted_without_a_request(relay: Relay) -> None:
    with socket.create_connection(("127.0.0.1", relay.port)) as raw:
        raw.sendall(b"\x16\x03\x01 not a request")
        end = time.monotonic() + 60.0
        while passed(relay.exchanges()).bytes_up < 17:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert passed(relay.exchanges()).bytes_up == 17
    assert passed(relay.exchanges()).requests == 0


@pytest.mark.parametrize("relay", [RTT_S], indirect=True)
def test_a_body_of_megabytes_takes_one_round_trip_longer_not_one_per_piece(relay: Relay) -> None:
    with httpx.Client(base_url=relay.url) as http:
        http.get("/")  # connects
        empty, full = ([took_s(http, body) for _ in range(5)] for body in (b"", bytes(MEGABYTES)))
    assert min(empty + full) >= RTT_S
    pieces = MEGABYTES / PIECE_BYTES  # on the way there, and as many on the way back
    assert min(full) - min(empty) < pieces * RTT_S  # of which copying takes a small part


def took_s(http: httpx.Client, body: bytes) -> float:
    start = time.monotonic()
    assert http.put("/", content=body).content == body
    return time.monotonic() - start


@pytest.mark.parametrize("relay", [RTT_S], indirect=True)
def test_a_new_connection_takes_a_round_trip_more(relay: Relay) -> None:
    start = time.monotonic()
    httpx.get(relay.url)
    assert time.monotonic() - start >= 2 * RTT_S


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    ended = (httpx.RemoteProtocolError, httpx.ReadError)
    with relaying("127.0.0.1", port) as relay, pytest.raises(ended):
        httpx.get(relay.url)


def test_a_relay_that_was_ended_says_so() -> None:
    with echo() as port:
        with relaying("127.0.0.1", port) as relay:
            pass
        with pytest.raises(RelayError, match="has ended"):
            relay.exchanges()
