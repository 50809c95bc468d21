"""The network between clients and coordinator: connections whose bytes meet faults.

Both ends are real: httpcore and its HTTP/1.1 on the client's side, uvicorn's protocol with our
limits on the coordinator's. What is replaced is the socket. A request and its answer are an
`Exchange`, numbered by device; a fault is of one exchange.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import httpcore
import httpx

from smidgen.coordinator.serving.http.header_limits import BoundedHttp
from tests.stories.clock import chance, of_greenlet, put

NEAR_S = 0.02  # the longest that a byte takes on its way
OTHERS = {  # answers of something in between
    502: b"<html><body><h1>502 Bad Gateway</h1></body></html>",
    504: b"<html><body><h1>504 Gateway Time-out</h1></body></html>",
    413: b"<html><body><h1>413 Request Entity Too Large</h1></body></html>",
    200: b"<!doctype html><title>Welcome to our network</title>",
    404: b'{"detail": "Not Found"}',
}


class Host(Protocol):
    """The coordinator's machine, as the network sees it."""

    loop: asyncio.AbstractEventLoop
    links: "dict[Link, None]"  # in the order in which they were made

    def accept(self) -> BoundedHttp | None:
        """A protocol for a new connection; None: nobody listens."""

    def op(self, what: str) -> None:
        """The process does something, and may die of it."""


class Link(asyncio.Transport):
    """The coordinator's end of a connection.

    Args:
        host: The coordinator's machine.
        heard: Gets what the coordinator says; None: the connection is over.
    """

    def __init__(self, host: Host, heard: Callable[[bytes | None], None]) -> None:
        super().__init__()
        self._host, self._heard, self._loop = host, heard, host.loop
        self._up_s = self._down_s = 0.0
        self._is_closing = False
        self._protocol = host.accept()
        if self._protocol is None:
            raise ConnectionRefusedError
        host.links[self] = None
        self._protocol.connection_made(self)

    def feed(self, data: bytes | None, after_s: float = 0.0) -> None:
        """Bytes on their way to the coordinator; None: the other side has gone."""
        self._up_s = self._later(self._up_s, after_s, self._fed, data)

    def _later(self, last_s: float, after_s: float, do: Callable[..., None], *given: Any) -> float:
        at_s = max(last_s + 1e-6, self._loop.time() + after_s + chance.uniform(0.0005, NEAR_S))
        self._loop.call_at(at_s, do, *given)
        return at_s

    def _fed(self, data: bytes | None) -> None:
        if self not in self._host.links or self._protocol is None:
            return
        if data is None:
            self._lose()
        elif not self._is_closing:
            self._protocol.data_received(data)

    def _lose(self) -> None:
        if self in self._host.links and self._protocol is not None:
            self._host.links.pop(self, None)
            self._protocol.connection_lost(None)

    def cut(self) -> None:
        """The coordinator's process has died, and its kernel says so."""
        self._host.links.pop(self, None)
        self._heard(None)

    # What protocols ask of a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self in self._host.links:
            self._host.op("sends")
            self._down_s = self._later(self._down_s, 0.0, self._heard, bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._later(self._down_s, 0.0, self._heard, None)
            self._loop.call_soon(self._lose)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        places = {"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8700)}
        return places.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert protocol is self._protocol

    def pause_reading(self) -> None:
        """Few bytes are on their way."""

    resume_reading = pause_reading


class Stream(httpcore.NetworkStream):
    """A client's end of a connection.

    Args:
        client: The process that it is of: it counts requests, knows their faults and hears of them.
        host: The coordinator's machine.
    """

    def __init__(self, client: Any, host: Host) -> None:
        self._client, self._host = client, host
        self._out, self._inbox = bytearray(), bytearray()
        self._is_over = self._is_asking = False
        self._cut_at: int | None = None  # of the answer's bytes
        self._slow_s, self.request, self.answer = 0.0, b"", bytearray()
        self._link: Link | None = Link(host, self._heard)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._client.op("sends")
        if not self._is_asking:
            self._is_asking = True
            self._out.clear()
        self._out += buffer

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._client.op("receives")
        if self._is_asking:
            self._is_asking = False
            self._send(bytes(self._out))
        left_s = timeout
        while not self._inbox and not self._is_over:
            if not self._client.park(self, left_s):
                self._drop()
                raise httpcore.ReadTimeout("timed out")
        if self._inbox:
            piece = bytes(self._inbox[:max_bytes])
            del self._inbox[:max_bytes]
            self.answer += piece
            self._client.received(self)
            return piece
        if chance.random() < 0.5:
            return b""  # it was closed in good order
        raise httpcore.ReadError("connection reset by peer")

    def _send(self, request: bytes) -> None:
        """Let a request go on its way, and meet what is to happen to it."""
        self.request, self.answer = request, bytearray()
        self._client.sent(request)
        self._cut_at, self._slow_s, link = None, 0.0, self._link
        fault = self._client.fault_of_request()
        kind, size, after_s = (fault.kind, fault.size, fault.seconds) if fault else ("", 0.0, 0.0)
        if link is None:
            self._is_over = True
        elif kind in ("lost", "late"):
            self._drop(after_s if kind == "lost" else 0.0)
            if kind == "late":
                self._again(request, after_s)
        elif kind == "cut request":
            link.feed(request[: int(size * len(request))])
            self._drop()
        elif kind == "between":
            body = OTHERS[int(size)]
            head = f"HTTP/1.1 {int(size)} Other\r\ncontent-length: {len(body)}\r\n"
            self._heard(head.encode() + b"content-type: text/html\r\n\r\n" + body)
        else:
            self._cut_at = int(size) if kind == "cut answer" else None
            self._slow_s = after_s if kind == "slow" else 0.0
            link.feed(request, self._slow_s / 2)
            if kind == "repeated":
                self._again(request, after_s)

    def _again(self, request: bytes, after_s: float) -> None:
        """The same bytes come another time, over a connection whose answers nobody reads."""

        def come() -> None:
            with suppress(ConnectionRefusedError):
                Link(self._host, lambda _: None).feed(request)

        self._host.loop.call_later(after_s, come)

    def _heard(self, data: bytes | None) -> None:
        if self._slow_s:
            self._host.loop.call_later(self._slow_s / 2, self._arrived, data)
        else:
            self._arrived(data)

    def _arrived(self, data: bytes | None) -> None:
        if data is not None and self._cut_at is not None:
            left = self._cut_at - len(self.answer) - len(self._inbox)
            if len(data) > left:
                self._inbox += data[: max(left, 0)]
                self._drop()
                data = None
        if data is None:
            self._is_over = True
        else:
            self._inbox += data
        self._client.wake(self)

    def _drop(self, after_s: float = 0.0) -> None:
        """The connection is lost: the other side hears of it now, this one after a while."""
        if self._link is not None:
            self._link.feed(None)
            self._link = None

        def over() -> None:
            self._is_over = True
            self._client.wake(self)

        self._host.loop.call_later(after_s, over)

    def close(self) -> None:
        if self._link is not None:
            self._link.feed(None)
            self._link = None
        self._is_over = True

    def get_extra_info(self, info: str) -> Any:
        return self._is_over or bool(self._inbox) if info == "is_readable" else None


def connected() -> None:
    """Let clients of this interpreter connect to the story's coordinator, and nowhere else."""

    def connect(_: object, host: str, port: int, *args: Any, **given: Any) -> Stream:
        client = of_greenlet("process")
        client.op("connects")
        try:
            return Stream(client, client.host)
        except ConnectionRefusedError as error:
            raise httpcore.ConnectError("connection refused") from error

    put(httpcore.SyncBackend, connect_tcp=connect)
    parsed = cache(httpx._urlparse.urlparse)  # of few URLs, again and again
    for place in (httpx._urls, httpx._urlparse):
        put(place, urlparse=parsed)
