"""A relay of HTTP that does what bad networks do: cuts, doubles, delays and overtakes requests, and
answers them itself, as a proxy or a login page does.

What happens to a request follows from the seed, from what it is, and from how often it came, not
from when: a seed replays it as far as processes on a busy machine let it.
"""

import asyncio
import json
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

Given = TypeVar("Given")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
KEY = re.compile(rb"\r\nauthorization: *([^\r]+)", re.IGNORECASE)
UPDATE = re.compile(r"PUT /v1/work/([^/]+)/update")
PIECE_BYTES = 4096


@dataclass(frozen=True)
class Faults:
    """How much of what happens to requests; shares of all, together at most 1.

    Attributes:
        cut: Cut by a reset after some byte of the request, or of its answer.
        twice: Sent twice at once; one of the answers is given.
        late: Sent once more some time later; nobody waits for that answer.
        overtaken: Cut, and sent on some time later: what its sender says again comes first.
        held: Held back for a moment, so that others overtake it.
        foreign: Answered with one of `FOREIGN`: half of them before the coordinator has heard of
            them, half of them instead of its answer.
    """

    cut: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    overtaken: float = 0.0
    held: float = 0.0
    foreign: float = 0.0


def _page(status: int, body: bytes, *headers: str) -> bytes:
    told = [f"HTTP/1.1 {status} X", "Server: proxy", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*told, "", ""]).encode() + body


HTML = b"<html><body><h1>Something in between</h1></body></html>"
# What others than a coordinator answer with; the connection ends after those that break HTTP.
FOREIGN = {
    "413": _page(413, HTML, "Content-Type: text/html"),
    "429": _page(429, HTML, "Retry-After: 1"),
    "502": _page(502, HTML, "Content-Type: text/html"),
    "login page": _page(200, HTML, "Content-Type: text/html; charset=utf-8"),
    "404": _page(404, HTML, "Content-Type: text/html"),
    "JSON of others": _page(404, b'{"detail":"Not Found"}', "Content-Type: application/json"),
    "redirect": _page(302, b"", "Location: https://login.invalid/"),
    "bad gzip": _page(200, b"\x1f\x8b\x08nonsense", "Content-Encoding: gzip"),
    "wrong length": _page(200, b"{}", "Connection: close").replace(b"th: 2", b"th: 99"),
    "garbage": b"\x00\x16\x03 no HTTP\r\n\r\n",
}
ENDING = ("wrong length", "garbage")


@dataclass
class Seen:
    """What went through.

    Attributes:
        faults: How often what happened.
        requests: All of them.
        acknowledged: Work whose update the coordinator said counts.
        server_errors: Answers of 5xx, by request and status.
        foreign: How often which of `FOREIGN` was given.
    """

    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    acknowledged: set[str] = field(default_factory=set)
    server_errors: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)


class FaultyRelay:
    """A relay in a thread of its own, before a coordinator on loopback; use it as a block.

    Args:
        ports: Where the coordinator listens, each time that it is started; of several servers any
            that takes a connection.
        faults: What is to happen.
        seed: Of all chances.

    Attributes:
        url: What devices are given.
        seen: What went through.
    """

    def __init__(self, ports: Sequence[int], faults: Faults, seed: int) -> None:
        self._ports, self._faults, self._seed = ports, faults, seed
        self._counts: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.url, self.seen = "", Seen()

    def __enter__(self) -> "FaultyRelay":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in (every := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a device until either side has enough of it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while request := await read_message(reader):
                gone = self._in_background(reader.read(1))
                answering = self._in_background(self._answer(request))
                await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():  # the device was killed: nobody waits
                    answering.cancel()
                    break
                gone.cancel()
                await asyncio.wait({gone})  # two may not read at once
                answer, cut_at = answering.result()
                writer.write(answer[:cut_at])
                await writer.drain()
                if cut_at is not None:
                    break
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            reset(writer)

    def _in_background(self, work: Coroutine[Any, Any, Given]) -> "asyncio.Task[Given]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, request: bytes) -> tuple[bytes, int | None]:
        """An answer, and after how many of its bytes the connection is cut; None: it is not.

        Raises:
            OSError: The connection is to be cut, or the coordinator is not there.
        """
        self.seen.requests += 1
        what, chance = self._fate(request)
        self.seen.faults[what] += 1
        if what == "held":
            await asyncio.sleep(chance.uniform(0.0, 0.5))
        elif what == "twice":
            both = [self._ask(request), self._ask(request)]
            found = await asyncio.gather(*both, return_exceptions=True)
            for one in found:
                if isinstance(one, OSError | EOFError):
                    raise ConnectionResetError from one
            return bytes(found[chance.randrange(2)]), None  # type: ignore[arg-type]
        elif what in ("late", "overtaken"):
            self._in_background(self._later(request, chance.uniform(0.1, 3.0)))
            if what == "overtaken":
                raise ConnectionResetError
        elif what == "foreign":
            return await self._foreign(request, chance)
        elif what == "cut":
            if chance.random() < 0.5:
                await self._ask(request, cut_at=chance.randrange(len(request)))
                raise ConnectionResetError
            answer = await self._ask(request)
            return answer, chance.randrange(len(answer))
        return await self._ask(request), None

    async def _foreign(self, request: bytes, chance: random.Random) -> tuple[bytes, int | None]:
        """An answer that is not the coordinator's, which may have answered before."""
        name = chance.choice([*FOREIGN])
        if chance.random() < 0.5 and not is_poll(request):
            await self._ask(request)
        self.seen.foreign[name] += 1
        said = b"" if request.startswith(b"HEAD") else FOREIGN[name].partition(b"\r\n\r\n")[2]
        answer = FOREIGN[name].partition(b"\r\n\r\n")[0] + b"\r\n\r\n" + said
        return answer, len(answer) if name in ENDING else None

    def _fate(self, request: bytes) -> tuple[str, random.Random]:
        """What happens to a request, and the chances that are left to draw."""
        line = request.partition(b"\r\n")[0]
        key = KEY.search(request)
        name = line + (key[1] if key else b"")
        self._counts[name] += 1
        chance = random.Random(f"{self._seed} {name!r} {self._counts[name]}")
        drawn = chance.random()
        for what, share in vars(self._faults).items():
            drawn -= share
            if drawn < 0:
                # To double a poll asks nothing of us.
                is_idle = is_poll(request) and what not in ("cut", "held", "foreign")
                return ("" if is_idle else what), chance
        return "", chance

    async def _later(self, request: bytes, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        with suppress(OSError, EOFError):
            await self._ask(request)

    async def _ask(self, request: bytes, cut_at: int | None = None) -> bytes:
        """Ask the coordinator on a connection of its own; or break off after some bytes."""
        reader, writer = await self._connected()
        try:
            writer.write(request[:cut_at])
            await writer.drain()
            if cut_at is not None:
                await asyncio.sleep(0.02)  # so that it has read them
                return b""
            is_head = request.startswith(b"HEAD")
            answer = await read_message(reader, is_head)
            if not answer:
                raise ConnectionResetError
            self._note(request, answer)
            return answer
        finally:
            reset(writer)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a server, drawn by chance among those that are there."""
        *others, last = random.sample(self._ports, len(self._ports))
        for port in others:
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return await asyncio.open_connection("127.0.0.1", last)

    def _note(self, request: bytes, answer: bytes) -> None:
        line = request.partition(b"\r\n")[0].decode()
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status >= 500:
            self.seen.server_errors[f"{line.split('?')[0]} {status}"] += 1
        update = UPDATE.match(line)
        if update and status == 200 and json.loads(body)["accepted"]:
            self.seen.acknowledged.add(update[1])


def is_poll(request: bytes) -> bool:
    """Whether a device asks what is next, and does nothing else."""
    return request.startswith(b"GET /v1/work")


async def read_message(reader: asyncio.StreamReader, is_bodiless: bool = False) -> bytes:
    """A request or an answer as it came, body of told length included; empty at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""
    length = LENGTH.search(head)
    if is_bodiless or not length:
        return head
    return head + await reader.readexactly(int(length[1]))


def reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection by a reset: what is under way is lost."""
    with suppress(OSError):
        plug = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
