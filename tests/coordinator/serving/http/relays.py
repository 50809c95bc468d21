"""A relay on loopback that resets connections, at a chosen byte or now and then.

    relay = CuttingRelay(port, lambda direction: 1000 if direction == "up" else None)

A reset is the real thing (RST, by SO_LINGER 0), to both sides at once.
"""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Direction = Literal["up", "down"]
# How many bytes of one direction of a new connection pass before it is cut; None: all.
Cut = Callable[[Direction], int | None]
CHUNK_BYTES = 16 << 10


class CuttingRelay:
    """Carries connections to a port, and cuts them.

    Args:
        port: Where they go to, on loopback.
        cut: Asked twice for each connection, once for each direction.
        before_cut: Called when the bytes of a cut are through; the reset comes after it.

    Attributes:
        port: Where it listens.
        cuts: How many connections were cut.
        passed: Bytes that went through, by direction.
    """

    def __init__(
        self, port: int, cut: Cut, before_cut: Callable[[], object] = lambda: None
    ) -> None:
        self._target, self._cut, self._lock = port, cut, threading.Lock()
        self._before_cut = before_cut
        self.cuts, self.passed = 0, {"up": 0, "down": 0}
        self._ends: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=300)
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are there end."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._ends += [near, far]
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            up = ("up", near, far, self._cut("up"))
            down = ("down", far, near, self._cut("down"))
            for ends in (up, down):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(
        self, direction: Direction, source: socket.socket, sink: socket.socket, left: int | None
    ) -> None:
        try:
            while chunk := source.recv(CHUNK_BYTES):
                is_last = left is not None and len(chunk) >= left
                chunk = chunk[:left] if is_last else chunk
                sink.sendall(chunk)
                with self._lock:
                    self.passed[direction] += len(chunk)
                    self.cuts += is_last
                if is_last:
                    break
                left = None if left is None else left - len(chunk)
            else:
                sink.shutdown(socket.SHUT_WR)
                return
        except OSError:  # the other direction has cut it
            return
        self._before_cut()
        for end in (source, sink):
            _reset(end)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
    end.close()


def now_and_then(share: float, chunk_bytes: int, draw: random.Random) -> Cut:
    """Cut where one of many chunks is hit by chance, at any byte of it.

    Args:
        share: Of chunks that are hit, such as 0.01.
        chunk_bytes: Their size.
        draw: Where chance comes from.
    """
    lock = threading.Lock()

    def cut(_: Direction) -> int:
        chunks = 0
        with lock:
            while draw.random() >= share:
                chunks += 1
            return chunks * chunk_bytes + 1 + draw.randrange(chunk_bytes)

    return cut


def once(direction: Direction, at: int) -> Cut:
    """Cut the first connection alone, after so many bytes of one direction."""
    left = {direction: at}
    return lambda asked: left.pop(asked, None)


@contextmanager
def cutting(
    port: int, cut: Cut, before_cut: Callable[[], object] = lambda: None
) -> Iterator[CuttingRelay]:
    """A relay to a port while inside."""
    relay = CuttingRelay(port, cut, before_cut)
    try:
        yield relay
    finally:
        relay.close()
