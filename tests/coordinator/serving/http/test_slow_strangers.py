"""Connections that stand still or trickle, beside devices that work: all from one address."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.serving.http.connection_limits import ConnectionBounds, ConnectionTimeouts
from smidgen.coordinator.storage.store import Store
from tests.coordinator.conftest import Live, serving

SHORT = ConnectionTimeouts(handshake_s=0.5, head_s=0.5, body_s=0.5, answer_s=1.0, grace_s=0.0)
ENROL = b"POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n"
WRONG = b"authorization: Bearer " + b"w" * 40 + b"\r\n"
STILL = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-y",
    "an empty line": b"\r\n",
    "half a body": ENROL + b"{",
    "an answer, and then nothing": b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    "a second head": b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /heal",
}
Serving = Callable[[ConnectionBounds], Live]


@pytest.fixture
def within(tmp_path: Path, config: RunConfig) -> Iterator[Serving]:
    with ExitStack() as stack:

        def started(room: ConnectionBounds) -> Live:
            store = stack.enter_context(closing(Store(tmp_path / "store")))
            return stack.enter_context(serving(store, config, room=room))

        yield started


def connect(live: Live) -> socket.socket:
    url = live.http.base_url
    assert url.port is not None
    return socket.create_connection((url.host, url.port), 90)


def is_ended(connection: socket.socket) -> bool:
    """Read until the other side ends, which a time-out of the socket bounds."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("said", STILL.values(), ids=STILL)
def test_a_stranger_that_does_not_go_on_is_cut(within: Serving, said: bytes) -> None:
    live = within(ConnectionBounds(100, 50, 50, SHORT))
    with closing(connect(live)) as connection:
        connection.sendall(said)
        assert is_ended(connection)


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nx-y: ", ENROL], ids=["headers that trickle", "a body that does"]
)
def test_a_stranger_that_trickles_is_cut(within: Serving, begin: bytes) -> None:
    live = within(ConnectionBounds(100, 50, 50, SHORT))
    sent, end = 0, time.monotonic() + 90
    with closing(connect(live)) as connection, suppress(ConnectionError):
        connection.sendall(begin)
        while time.monotonic() < end:
            connection.sendall(b"a")
            sent += 1
            time.sleep(0.05)
        pytest.fail(f"{sent} bytes were taken one by one")


def test_a_device_that_waits_is_not_hurried_and_its_half_heads_are_cut(within: Serving) -> None:
    live = within(ConnectionBounds(100, 50, 50, SHORT))
    (device,) = live.join("d")
    key = f"authorization: Bearer {device.key}\r\n".encode()
    poll = b"GET /v1/work?wait_s=%b HTTP/1.1\r\nhost: x\r\n" + key + b"\r\n"
    with closing(connect(live)) as connection:
        connection.sendall(poll % b"2.5")
        began_s = time.monotonic()
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began_s >= 2.4  # longer than any stranger has
        connection.sendall(b"GET /v1/work")
        assert is_ended(connection)


@pytest.mark.parametrize(
    "ask",
    [
        b"PUT /v1/work/w/update HTTP/1.1\r\nhost: x\r\n" + WRONG,
        b"POST /v1/work/w/report HTTP/1.1\r\nhost: x\r\n" + WRONG,
        b"POST /v1/enrol HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/nowhere HTTP/1.1\r\nhost: x\r\n",
    ],
    ids=["a wrong key", "a report", "too long", "no such path"],
)
def test_after_a_refusal_a_body_is_not_swallowed_without_end(within: Serving, ask: bytes) -> None:
    live = within(ConnectionBounds(100, 50, 50))
    with closing(connect(live)) as connection:
        heard: list[bytes] = []
        listener = threading.Thread(target=lambda: heard.append(whole(connection)))
        listener.start()
        sent = 0
        with suppress(ConnectionError):
            connection.sendall(ask + b"content-length: 900000000\r\n\r\n")
            while sent < 200 << 20:
                connection.sendall(b"a" * 65536)
                sent += 65536
        listener.join(90)
    assert sent < 40 << 20  # the sockets' own buffers among them
    assert heard[0].startswith(b"HTTP/1.1 4") and b"connection: close" in heard[0]


def whole(connection: socket.socket) -> bytes:
    said = b""
    with suppress(OSError):
        while piece := connection.recv(65536):
            said += piece
    return said


def test_devices_work_on_beside_two_hundred_slow_strangers_of_their_address(
    within: Serving,
) -> None:
    live = within(ConnectionBounds(120, 60, 30, ConnectionTimeouts(grace_s=0.0)))
    devices = live.join("d1", "d2", "d3")
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(connect(live))) for _ in range(200)]
        for number, one in enumerate(slow):
            with suppress(ConnectionError):
                one.sendall(list(STILL.values())[number % len(STILL)])
        for _ in range(2):
            for device in devices:
                assert device.poll().status_code == 200
        assert live.enrol("newcomer")[0].poll().status_code == 200  # of the same address
        left = 0
        for one in slow:
            one.setblocking(False)
            with suppress(ConnectionError):
                try:
                    while one.recv(65536):
                        pass
                except BlockingIOError:
                    left += 1
        assert left <= 30
