"""A relay between a client and its coordinator on loopback that keeps every byte of both.

It can act between the two: `happened` is called before an answer goes on to the client, so what it
does to the device's files is done by the time the client reads the answer.
"""

import re
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

EVENTS = {
    "POST /v1/enrol": "enrolled",
    "GET /v1/work": "asked",
    "POST /v1/runs/membership": "joined",
}
REPORT = "POST /v1/work/report"  # `reported` once it was sent: its answer may wait for what is next
NAMES = re.compile(rb"(GET|PUT|POST) (\S+) HTTP")
IDS = re.compile(r"\?.*|/[\w.-]{11,}")  # of works, runs and adapters; no other part is as long


@dataclass
class Exchange:
    """A request and its answer, byte by byte.

    Attributes:
        up: What the client sent.
        down: What the coordinator answered.
    """

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)

    @property
    def name(self) -> str:
        """Method and path without ids, such as `POST /v1/work/report`."""
        found = NAMES.match(self.up)
        return f"{found[1].decode()} {IDS.sub('', found[2].decode())}" if found else "?"


class Relay:
    """Listens on a free port and carries what comes to a coordinator.

    Args:
        port: The coordinator's, on loopback.
        happened: Called with what an answer means and how often it happened so far, such as
            `("reported", 2)`, before the client gets the answer.
    """

    def __init__(self, port: int, happened: Callable[[str, int], None]) -> None:
        self._port, self._happened = port, happened
        self._counts: Counter[str] = Counter()
        self._moved_s, self._is_at_work = time.monotonic(), True
        self.heard_s: float | None = None  # when the client first said something in this life
        self.unreachable: OSError | None = None  # why the coordinator could not be reached
        self.exchanges: list[Exchange] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are there end with their client."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def expect(self) -> None:
        """A client was started: it is at work until it has reported again."""
        self._moved_s, self._is_at_work, self.heard_s = time.monotonic(), True, None

    def count(self, event: str) -> int:
        """How often something happened."""
        return self._counts[event]

    def is_idle(self, for_s: float) -> bool:
        """Whether the client has answered what it was asked, and nothing has moved since."""
        return not self._is_at_work and time.monotonic() - self._moved_s > for_s

    def all_bytes(self) -> bytes:
        """Everything that went either way."""
        return b"".join(bytes(one.up + one.down) for one in self.exchanges)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        exchange = Exchange()
        try:
            server = socket.create_connection(("127.0.0.1", self._port))
        except OSError as error:
            self.unreachable = error
            client.close()
            return
        try:
            with client, server:
                while True:
                    for end in select.select([client, server], [], [])[0]:
                        if not (chunk := end.recv(1 << 16)):
                            return
                        self._moved_s = time.monotonic()
                        if end is client:
                            self.heard_s = self.heard_s or self._moved_s
                            exchange = self._asked(exchange, chunk)
                            server.sendall(chunk)
                        else:
                            self._answered(exchange, chunk)
                            client.sendall(chunk)
        except OSError:  # one of the two was killed
            return

    def _asked(self, exchange: Exchange, chunk: bytes) -> Exchange:
        is_first = bool(exchange.down or not exchange.up)
        if is_first:
            exchange = Exchange()
            self.exchanges.append(exchange)
        exchange.up += chunk
        if is_first and exchange.name == REPORT:
            self._met("reported")
        return exchange

    def _answered(self, exchange: Exchange, chunk: bytes) -> None:
        is_first = not exchange.down
        exchange.down += chunk
        is_asked = exchange.name == REPORT and b'"next":{' in chunk
        event = "asked" if is_asked else EVENTS.get(exchange.name)
        if is_first and event and chunk.split(b" ", 2)[1:2] == [b"200"]:
            self._met(event)

    def _met(self, event: str) -> None:
        self._counts[event] += 1
        self._is_at_work = event != "reported"
        self._happened(event, self._counts[event])
