"""What is said before a body ends, or the connection does."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from smidgen.coordinator.serving.http.header_limits import MOST_BYTES
from tests.coordinator.conftest import Live

Start = Callable[..., Live]
CHUNKED = b"POST /v1/enrol HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "a header's name": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-",
    "a header's value": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-y: ",
    "a path": b"GET /",
    "a trailer": CHUNKED + b"0\r\nx-y: ",
    "a chunk's extension": CHUNKED + b"1;x=",
}


@pytest.fixture
def connection(start: Start) -> Iterator[socket.socket]:
    url = start().http.base_url
    assert url.port is not None
    with closing(socket.create_connection((url.host, url.port), 20)) as opened:
        yield opened


def answer_to(connection: socket.socket, pieces: Iterator[bytes]) -> bytes:
    """What comes back, up to the end of the connection or of an answer."""
    connection.setblocking(False)
    said, end = b"", time.monotonic() + 90
    for piece in pieces:
        with suppress(BlockingIOError, ConnectionError):
            connection.sendall(piece)
        time.sleep(0.001)
        with suppress(BlockingIOError, ConnectionError):
            if not (got := connection.recv(65536)):
                break
            said += got
        assert time.monotonic() < end, "it takes all of it"
        if said:
            break
    return said


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_refused(connection: socket.socket, begin: bytes) -> None:
    def endless() -> Iterator[bytes]:
        yield begin
        while True:
            yield b"a" * 4096

    assert answer_to(connection, endless()).startswith(b"HTTP/1.1 4")


def test_headers_without_end_are_refused(connection: socket.socket) -> None:
    def endless() -> Iterator[bytes]:
        yield b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
        while True:
            yield b"x-y: z\r\n" * 500

    assert answer_to(connection, endless()).startswith(b"HTTP/1.1 400")


def test_what_is_long_and_ends_is_answered_request_after_request(
    connection: socket.socket,
) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-y: " + b"a" * (MOST_BYTES // 2) + b"\r\n\r\n"
    connection.settimeout(20)
    for _ in range(5):
        for start in range(0, len(head), 4096):
            connection.sendall(head[start : start + 4096])
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")


def test_what_is_not_http_is_answered_by_the_coordinator_and_told_seldom(
    start: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    live = start()
    url = live.http.base_url
    answers = []
    for _ in range(9):
        with socket.create_connection((url.host, url.port or 0), 30) as connection:
            connection.sendall(b"\x16\x03\x01 garbage \x1b[2J\r\n\r\n")
            answers.append(b"".join(iter(lambda: connection.recv(4096), b"")))
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"uvicorn" not in answer
        assert b"\r\nsmidgen-protocol: " in head and b"\r\nconnection: close" in head
        assert json.loads(body) == {"detail": "a request of HTTP/1.1 is expected"}
    assert "server" not in live.http.get("/healthz").headers
    told = [line for line in caplog.messages if "HTTP" in line]
    assert told == ["127.0.0.1 said what is not HTTP/1.1 and was refused"] * 5
