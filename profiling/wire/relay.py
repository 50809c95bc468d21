"""A relay between clients and a server that counts bytes and adds latency.

It is a process of its own, so that its computing disturbs nobody. Each direction of a connection is
a queue in which every piece waits half the round trip; what is in flight has no limit, so a body of
megabytes takes one way longer, not one way per piece. The first bytes of a connection wait one
round trip more, as for TCP's handshake. Bandwidth, loss and slow start are not imitated.

    with relaying("127.0.0.1", 8700, rtt_s=0.05) as relay:
        print(relay.url, relay.exchanges())
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from smidgen.edge_client.errors import Failed, demand

PIECE_BYTES = 256 * 1024
KEY = re.compile(rb"\r\nauthorization: *([^\r]+)\r\n", re.IGNORECASE)


class RelayError(Failed):
    """The relay ended before it was to."""


@dataclass
class Exchange:
    """A request and its answer, all that lay on the sockets: lines, headers and bodies.

    Attributes:
        connection: Number of its connection, from 0.
        method: `GET`, `POST`, ...; empty where a connection does not begin with a request.
        path: What was asked for, query included.
        key: What the client calls itself by, its `Authorization`; empty where it says none.
        started_s: When its first byte came, by `time.monotonic()`, which all processes share.
        ended_s: When its last byte came so far.
        bytes_up: From the client.
        bytes_down: To the client.
    """

    connection: int
    method: str
    path: str
    key: str
    started_s: float
    ended_s: float
    bytes_up: int = 0
    bytes_down: int = 0


class Relay:
    """A running relay; `relaying` makes it.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        url: Its address, for clients of HTTP.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.port: int = self._said("port")
        self.url = f"http://127.0.0.1:{self.port}"

    def exchanges(self) -> list[Exchange]:
        """Every exchange so far, in the order in which they began.

        Raises:
            RelayError: The relay has ended.
        """
        demand(self._process.poll() is None, "the relay has ended", RelayError)
        assert self._process.stdin is not None
        with suppress(OSError):  # that it ends just now is found below
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return [Exchange(**row) for row in self._said("exchanges")]

    def _said(self, name: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RelayError("the relay has ended")
        return json.loads(line)[name]


@contextmanager
def relaying(host: str, port: int, rtt_s: float = 0.0) -> Iterator[Relay]:
    """A relay to a server; it lives no longer than this block.

    Args:
        host: Of the server.
        port: Of the server.
        rtt_s: Round trip that is added, half of it on the way there and half on the way back.

    Raises:
        RelayError: It did not begin.
    """
    line = [sys.executable, "-m", "smidgen.profiling.wire.relay", host, str(port), str(rtt_s)]
    with subprocess.Popen(
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C in the terminal reaches its owner alone
    ) as process:
        try:
            yield Relay(process)
        finally:
            process.kill()


# In its process


class ExchangeLog:
    """Sorts one connection's bytes into exchanges.

    HTTP/1.1 without pipelining takes turns: a client that speaks after it was answered begins a
    request, if what it says looks like one. All else belongs to the exchange that is open.
    """

    def __init__(self, connection: int, exchanges: list[Exchange]) -> None:
        self._connection, self._exchanges = connection, exchanges
        self._open: Exchange | None = None

    def up(self, piece: bytes) -> None:
        """Count bytes of the client."""
        now_s = time.monotonic()
        if self._open is None or self._open.bytes_down:
            request = re.match(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n", piece)
            if request is not None or self._open is None:
                method, path = request.groups() if request else (b"", b"")
                head = piece.partition(b"\r\n\r\n")[0] + b"\r\n"
                key = found[1] if request and (found := KEY.search(head)) else b""
                words = [word.decode("latin-1") for word in (method, path, key)]
                self._open = Exchange(self._connection, words[0], words[1], words[2], now_s, now_s)
                self._exchanges.append(self._open)
        self._open.bytes_up += len(piece)
        self._open.ended_s = now_s

    def down(self, piece: bytes) -> None:
        now_s = time.monotonic()
        if self._open is None:  # a server that speaks first
            self._open = Exchange(self._connection, "", "", "", now_s, now_s)
            self._exchanges.append(self._open)
        self._open.bytes_down += len(piece)
        self._open.ended_s = now_s


async def carry(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    delay_s: float,
    open_s: float,
    count: Callable[[bytes], None],
) -> None:
    """Carry one direction to its end; each piece arrives `delay_s` after it was sent.

    Args:
        source: Where it comes from.
        sink: Where it goes.
        delay_s: One way.
        open_s: Nothing is sent before, by `time.monotonic()`.
        count: Told of each piece.

    Raises:
        OSError: One side broke the connection.
    """
    on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def arrive() -> None:
        piece = b"."
        while piece:
            due_s, piece = await on_the_way.get()
            if (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            if piece:
                sink.write(piece)
                await sink.drain()
        sink.write_eof()

    arriving = asyncio.create_task(arrive())
    try:
        piece = b"."
        while piece:
            piece = await source.read(PIECE_BYTES)
            if piece:
                count(piece)
            on_the_way.put_nowait((max(time.monotonic(), open_s) + delay_s, piece))
        await arriving
    finally:
        arriving.cancel()


async def relay(host: str, port: int, rtt_s: float) -> None:
    """Listen on a free port, and answer every line of stdin with what passed; its end is ours."""
    exchanges: list[Exchange] = []
    connections = 0

    async def meet(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        nonlocal connections
        book = ExchangeLog(connections, exchanges)
        connections += 1
        open_s = time.monotonic() + rtt_s
        with suppress(OSError):  # a server that is not there, or a side that broke off
            server, there = await asyncio.open_connection(host, port, limit=PIECE_BYTES)
            try:
                await asyncio.gather(
                    carry(client, there, rtt_s / 2, open_s, book.up),
                    carry(server, back, rtt_s / 2, 0.0, book.down),
                )
            finally:
                there.transport.abort()
        back.transport.abort()

    listening = await asyncio.start_server(meet, "127.0.0.1", 0, limit=PIECE_BYTES)
    print(json.dumps({"port": listening.sockets[0].getsockname()[1]}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"exchanges": [asdict(one) for one in exchanges]}), flush=True)


# Which exchanges make whole rounds, and which of these training takes


UPLOAD = re.compile(r"/v1/work/([^/]+)/update$")


class CountError(Failed):
    """The relay did not see as many uploads as there were rounds."""


def by_client(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    keys = dict.fromkeys(one.key for one in exchanges if UPLOAD.match(one.path))
    return [[one for one in exchanges if one.key == key] for key in keys]


def uploads(own: Sequence[Exchange]) -> dict[str, int]:
    """Where a client's first upload of each work is, by the work's id; a repeated one is later."""
    places: dict[str, int] = {}
    for place, one in enumerate(own):
        if found := UPLOAD.match(one.path):
            places.setdefault(found[1], place)
    return places


def whole_rounds(exchanges: Sequence[Exchange], rounds: int) -> Iterator[Exchange]:
    """Exchanges of the last rounds of each client, as many of each kind as rounds have.

    Every round has one upload: from the one before the first of these rounds up to the one in the
    last of them is as much as the rounds take. What a client had to send again counts too.

    Raises:
        CountError: A client has fewer uploads.
    """
    for own in by_client(exchanges):
        places = list(uploads(own).values())
        if len(places) <= rounds:
            raise CountError(
                f"the relay saw {len(places)} uploads of a client, {rounds + 1} expected; "
                "run it again"
            )
        yield from own[places[-rounds - 1] : places[-1]]


def of_training(exchanges: Sequence[Exchange]) -> Iterator[Exchange]:
    """Those of them that training takes: the adapter, the upload and its report, or a poll for it.

    The adapter counts here, though a client that was asked to evaluate it has it by then.
    """
    for own in by_client(exchanges):
        works = uploads(own)
        # What comes next in time begins this round again: each round has as much of each.
        after = [*own[1:], own[0]]
        for one, following in zip(own, after, strict=True):
            is_poll = one.path.startswith("/v1/work?") and UPLOAD.match(following.path)
            path = one.path.partition("?")[0]
            is_report = any(path == f"/v1/work/{work}/report" for work in works)
            is_adapter = one.path.startswith("/v1/adapters/")
            if is_poll or is_report or is_adapter or UPLOAD.match(one.path):
                yield one


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
