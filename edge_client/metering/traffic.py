"""Bytes of TCP connections as the kernel counted them, whatever ran on top of TCP.

`TCP_INFO` holds what the other side has acknowledged and what came in since the connection began
(Linux 4.1 and later), and what was sent again (4.19). TLS, HTTP's headers and broken answers are in
it; Ethernet's and IP's own headers are not.

    traffic = Traffic()
    client.get(url, extensions={"trace": traffic.trace})
    print(traffic.total().received_bytes)

How fast updates get through a device's link, by those that were sent; kept between starts.

    link = Link(folder / "link.json")
    link.sent(1_186_440, 4.2)
    link.rate()  # bytes per second, or None before anything was sent
"""

import logging
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from smidgen.edge_client.files import PRIVATE, from_json, write_atomically

# Places in Linux's struct tcp_info, which only ever grows at its end; 64-bit counters.
ACKED, RECEIVED, SENT_AGAIN = 120, 128, 208
WIDTH = 8
MOST = 256  # bytes of it asked for
TCP_INFO = getattr(socket, "TCP_INFO", None)


@dataclass(frozen=True)
class TcpBytes:
    """What went through connections; None where the kernel does not count it.

    Attributes:
        acked_bytes: Sent and acknowledged by the other side.
        received_bytes: Received.
        sent_again_bytes: Sent more than once.
        connections: How many there were.
    """

    acked_bytes: int | None = 0
    received_bytes: int | None = 0
    sent_again_bytes: int | None = 0
    connections: int = 0

    def plus(self, other: "TcpBytes") -> "TcpBytes":
        """Both together; unknown where one is."""
        return TcpBytes(
            _sum(self.acked_bytes, other.acked_bytes),
            _sum(self.received_bytes, other.received_bytes),
            _sum(self.sent_again_bytes, other.sent_again_bytes),
            self.connections + other.connections,
        )

    def since(self, before: "TcpBytes") -> "TcpBytes":
        return TcpBytes(
            _sum(self.acked_bytes, before.acked_bytes, -1),
            _sum(self.received_bytes, before.received_bytes, -1),
            _sum(self.sent_again_bytes, before.sent_again_bytes, -1),
            self.connections - before.connections,
        )


NOTHING = TcpBytes()


def _sum(a: int | None, b: int | None, sign: int = 1) -> int | None:
    return None if a is None or b is None else a + sign * b


def read_tcp(opened: socket.socket) -> TcpBytes:
    """What the kernel has counted of one connection up to now.

    Raises:
        OSError: It is closed, or not a TCP connection.
    """
    if TCP_INFO is None:
        return TcpBytes(None, None, None, 1)
    raw = opened.getsockopt(socket.IPPROTO_TCP, TCP_INFO, MOST)
    acked = _counter(raw, ACKED)
    if not acked:  # an older kernel, or one that fills in a part alone
        return TcpBytes(None, None, None, 1)
    # The kernel counts the connection's first sign as a byte that was acknowledged
    return TcpBytes(acked - 1, _counter(raw, RECEIVED), _counter(raw, SENT_AGAIN), 1)


def _counter(raw: bytes, place: int) -> int | None:
    if len(raw) < place + WIDTH:
        return None  # an older kernel
    found: int = struct.unpack_from("=Q", raw, place)[0]
    return found


class Stream(Protocol):
    """One of httpcore's connections."""

    def get_extra_info(self, info: str) -> Any: ...


class Traffic:
    """The traffic of all connections that an HTTP client opens, lost ones included.

    Of a TLS handshake that fails the bytes are lost. Its `trace` is httpcore's extension of this
    name: it learns of each connection when that is made, and reads it when an answer is over or has
    failed, before anybody closes it.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[socket.socket, TcpBytes]] = {}
        self._over = NOTHING

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at each step of a request."""
        if event.endswith("connect_tcp.complete"):
            self._read()
            self._watch(info["return_value"])
        elif event.endswith("start_tls.complete"):
            self._watch(info["return_value"])  # laid over a connection that is watched already
        elif event.endswith((".failed", "response_closed.started")):
            self._read()

    def total(self) -> TcpBytes:
        self._read()
        found = self._over
        for _, counted in self._open.values():
            found = found.plus(counted)
        return found

    def _watch(self, stream: Stream) -> None:
        opened = stream.get_extra_info("socket")
        if opened is not None:
            _, counted = self._open.get(opened.fileno(), (None, TcpBytes(connections=1)))
            self._open[opened.fileno()] = opened, counted

    def _read(self) -> None:
        for number, (opened, counted) in list(self._open.items()):
            if opened.fileno() != number:  # closed since
                self._over = self._over.plus(counted)
                del self._open[number]
                continue
            with suppress(OSError):
                self._open[number] = opened, read_tcp(opened)


NEW = 0.5  # how much the newest one counts
LEAST_BYTES = 1024  # of less, latency is all that is seen

log = logging.getLogger(__name__)


class Link:
    """The link of one device.

    Law: the rate lies between the slowest and the fastest of what was sent.

    Args:
        path: Written when something was sent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def rate(self) -> float | None:
        try:
            rate = from_json(self._path.read_bytes(), dict[str, float])["bytes_per_s"]
        except (OSError, KeyError, msgspec.DecodeError):
            return None
        return rate if rate > 0.0 else None

    def sent(self, size_bytes: int, seconds: float) -> None:
        """Learn from an update that got through; tries that failed are in its seconds.

        Args:
            size_bytes: Its size.
            seconds: From the first byte to the receipt.
        """
        if size_bytes < LEAST_BYTES or seconds <= 0.0:
            return
        before, now = self.rate(), size_bytes / seconds
        rate = now if before is None else NEW * now + (1.0 - NEW) * before
        try:
            write_atomically(self._path, msgspec.json.encode({"bytes_per_s": rate}), PRIVATE)
        except OSError as error:
            log.warning("how fast the link is is not kept: %s", error)
