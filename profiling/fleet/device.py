"""A light device for load tests: the client's protocol without computing, over minimal HTTP/1.1.

Training adds 0.01 to every number; evaluating reports half of ten texts right. Downloads are
checked by their hash; no state is kept on disk, since the coordinator is what is measured.

It reads only what a coordinator sends: a status line, headers, and a body of known length. A client
library would cost more than the server that is measured.
"""

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import numpy as np

from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol, Enrolled, Membership, draw_key
from smidgen.edge_client.wire.messages import (
    PROTOCOL,
    Next,
    Over,
    Receipt,
    Report,
    WireError,
    Work,
    decode,
    encode,
    encode_brief,
)
from smidgen.edge_client.wire.reports import Cost
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    digest_header,
    encode_update,
    sha256,
)
from smidgen.profiling.fleet.run import Met
from smidgen.profiling.instruments.made_up_run import ADDED

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 256 << 20


class ConnectionBroke(Failed):
    """The other side is not there, ended in the middle, or does not speak HTTP."""


@dataclass(frozen=True)
class Answer:
    """An answer from the other side.

    Attributes:
        status: The HTTP status.
        headers: By lower-case name.
        body: All of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """At most one connection to a server, kept open between requests.

    Args:
        url: Of the server, without a path.
        trust: Whom to trust under TLS; of no use with `http://`.
        headers: Sent with each request.
        timeout_s: The longest wait for an answer, beside what a request adds to it.

    Attributes:
        opened: Connections opened so far.
    """

    def __init__(
        self,
        url: str,
        trust: ssl.SSLContext | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._trust = trust if parts.scheme == "https" else None
        own = {"Host": parts.netloc, "User-Agent": "smidgen"} | dict(headers)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.opened = 0

    @property
    def is_open(self) -> bool:
        return self._streams is not None and not self._streams[0].at_eof()

    async def open(self) -> None:
        """Connect, unless that is done.

        Raises:
            ConnectionBroke: Nobody is there, or it is not whom we trust.
        """
        if self.is_open:
            return
        self.close()
        opening = asyncio.open_connection(
            self._host, self._port, ssl=self._trust, limit=MOST_HEAD_BYTES
        )
        try:
            self._streams = await asyncio.wait_for(opening, self._timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            raise ConnectionBroke(f"cannot connect: {_said(error)}") from error
        self.opened += 1

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """Ask once.

        Args:
            method: Such as `GET`.
            path: With its query.
            body: Sent with it.
            headers: Beside those of every request.
            wait_s: How much longer than usual the answer may take: a long poll's.

        Raises:
            ConnectionBroke: No whole answer came; the next request opens a connection.
        """
        await self.open()
        assert self._streams is not None
        reader, writer = self._streams
        told = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{told}{length}\r\n"
        try:
            writer.write(head.encode("latin-1") + body)
            answer = await asyncio.wait_for(_read(reader, method), self._timeout_s + wait_s)
        except asyncio.CancelledError:
            self.close()
            raise
        except asyncio.TimeoutError as error:  # an OSError from Python 3.11 on
            self.close()
            raise ConnectionBroke(f"no answer within {self._timeout_s + wait_s:g} s") from error
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.close()
            raise ConnectionBroke(f"no answer: {_said(error)}") from error
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:200]


async def _read(reader: asyncio.StreamReader, method: str) -> Answer:
    """Read one answer.

    Raises:
        EOFError: It ends too soon.
        ValueError: It is not HTTP, or of a kind that no coordinator sends.
    """
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP: {lines[0][:60]!r}")
    status = int(rest[:3])
    named = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in named}
    if method == "HEAD" or status in (204, 304) or status < 200:
        return Answer(status, headers, b"")
    length = int(headers["content-length"]) if "content-length" in headers else -1
    demand(0 <= length <= MOST_BODY_BYTES, "an answer without a length, or too long", ValueError)
    return Answer(status, headers, await reader.readexactly(length))


POLL_S = 25.0  # as the client's own
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
KEPT = 3  # adapters that a device has at hand
MOST_REFUSALS = 20  # of a device, after which it stays away: none is to be expected
COST = Cost(
    phases_s={"wait": 1.0, "download": 0.1, "load": 0.1, "train": 1.0, "upload": 0.1},
    cpu_s={"wait": 0.1, "download": 0.1, "load": 0.1, "train": 1.0, "upload": 0.1},
    peak_rss_bytes=100_000_000,
    peak_phase="train",
    minor_faults=1000,
    major_faults=1,
    requests=3,
    connections=1,
)
Message = TypeVar("Message")


class RequestRefused(Failed):
    """The coordinator answered with a 4xx: not to be expected of these devices."""


@dataclass
class LoadLog:
    """What the devices of one process write into together.

    Attributes:
        tell: Told of what happens for the first time.
        met: All that they met.
        first: The adapter that the run starts from.
        last: The adapter of the finished run.
    """

    tell: Callable[..., None]
    met: Met = field(default_factory=Met)
    first: AdapterState = field(default_factory=dict)
    last: AdapterState = field(default_factory=dict)

    def wrong(self, what: str) -> None:
        self.met.errors[what] = self.met.errors.get(what, 0) + 1
        if self.met.errors[what] == 1:
            self.tell("error", what=what)

    def hear(self, work: Work) -> None:
        name = f"{work.round_index} {work.kind}"
        if name not in self.met.heard_s:
            self.tell("work", round_index=work.round_index, kind=work.kind)
        self.met.heard_s.setdefault(name, []).append(time.monotonic())


class Device:
    """One light device.

    Args:
        connection: Opens a connection with its key.
        name: What it calls itself.
        base_id: Of the base that it claims to hold.
        book: Where all is written down.
    """

    def __init__(
        self,
        connection: Callable[[Mapping[str, str]], Connection],
        name: str,
        base_id: str,
        book: LoadLog,
    ) -> None:
        self._book, self._name, self._base_id = book, name, base_id
        self._http = connection({"Authorization": f"Bearer {draw_key()}"})
        self._adapters: deque[str] = deque(maxlen=KEPT)  # what it has, by hash
        self._heard = ""  # the work that it was given last
        self._refusals = 0

    async def enrol(self, token: str, tags: Mapping[str, str]) -> None:
        facts = DeviceFacts("aarch64", 4, 4 << 30, "3.11", "fleet", "onnx", self._base_id)
        message = Enrol(PROTOCOL, self._name, facts, token, dict(tags))
        await self._post("enrol", "/v1/enrol", encode(message), Enrolled)
        self._book.met.enrolled += 1

    async def take_part(self) -> None:
        """Do what is asked until the run is over and its adapter is here."""
        wait_s = 0.0  # at first, as a client does
        came: Next | None = None  # with the receipt of a report
        while self._refusals < MOST_REFUSALS:
            try:
                given, came = came or await self._next(wait_s), None
                wait_s = POLL_S
                if given.terms is not None:
                    await self._stand(given.terms.run_id, "joined")
                if given.work is not None:
                    came = await self._serve(given.work)
                if given.over is not None:
                    await self._go_home(given.over)
                    return
            except (RequestRefused, WireError) as error:
                self._book.wrong(str(error))
                self._refusals += 1
                await asyncio.sleep(1.0)

    def close(self) -> None:
        self._http.close()

    async def _next(self, wait_s: float) -> Next:
        start = time.monotonic()
        answer = await self._ask("poll", "GET", f"/v1/work?wait_s={wait_s:g}", wait_s=wait_s)
        return self._heard_of("poll", decode(answer.body, Next), start, wait_s)

    def _heard_of(self, route: str, given: Next, start: float, wait_s: float) -> Next:
        if given.work is not None and given.work.work_id != self._heard:
            self._heard = given.work.work_id
            self._book.hear(given.work)
        elif given.waiting is not None:
            spent_s = time.monotonic() - start
            self._book.met.took(route, spent_s - wait_s if spent_s > wait_s else 0.0)
        return given

    async def _stand(self, run_id: str, state: Literal["joined", "home"]) -> None:
        path = f"/v1/runs/{run_id}/membership"
        await self._post("membership", path, encode(Membership(state)), Receipt)

    async def _serve(self, work: Work) -> Next | None:
        """Do a piece of work; what comes with the receipt of its report."""
        await self._adapter(work.adapter_sha256)
        report = Report(work.work_id, "done", 10, 1.0, 0.5, COST, labelled=8)
        if work.kind == "train":
            await self._upload(work.work_id)
            report = Report(work.work_id, "done", 8, 1.0, cost=COST)
        path = f"/v1/work/{work.work_id}/report?wait_s={POLL_S:g}"
        start = time.monotonic()
        receipt = await self._post("report", path, encode_brief(report), Receipt, POLL_S)
        return receipt.next and self._heard_of("report", receipt.next, start, POLL_S)

    async def _upload(self, work_id: str) -> None:
        delta = {name: np.full_like(tensor, ADDED) for name, tensor in self._book.first.items()}
        body = encode_update(Update(work_id, 8, delta))
        headers = {
            "Content-Type": "application/octet-stream",
            "Repr-Digest": digest_header(sha256(body)),
        }
        answer = await self._ask("update", "PUT", f"/v1/work/{work_id}/update", body, headers)
        is_accepted = decode(answer.body, Receipt).accepted
        self._book.met.accepted += is_accepted
        self._book.met.refused += not is_accepted

    async def _adapter(self, digest: str) -> None:
        """Have an adapter: downloaded, unless it is here."""
        if digest in self._adapters:
            return
        body = (await self._ask("adapter", "GET", f"/v1/adapters/{digest}")).body
        demand(sha256(body) == digest, f"adapter: {len(body)} bytes with another hash", WireError)
        self._adapters.append(digest)
        if not self._book.first:
            self._book.first = decode_adapter(body)
        if self._book.met.over_s:
            self._book.last = decode_adapter(body)

    async def _go_home(self, over: Over) -> None:
        self._book.met.over_s = self._book.met.over_s or time.monotonic()
        if not self._book.last:
            self._adapters.clear()  # once more for one device, to look at it
        await self._adapter(over.adapter_sha256)
        await self._stand(over.run_id, "home")

    async def _post(
        self, route: str, path: str, body: bytes, kind: type[Message], wait_s: float = 0.0
    ) -> Message:
        headers = {"Content-Type": "application/json"}
        return decode((await self._ask(route, "POST", path, body, headers, wait_s)).body, kind)

    async def _ask(
        self,
        route: str,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """Ask until there is an answer, with growing pauses between.

        Raises:
            Refused: A 4xx.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            least_s = 0.0
            try:
                answer = await self._once(route, method, path, body, headers, wait_s)
            except ConnectionBroke as error:
                self._book.wrong(f"{route}: {error}")
            else:
                if answer.status == 200:
                    return answer
                if answer.status in (429, 503):
                    self._book.met.held_back += 1
                    least_s = float(answer.headers.get("retry-after", "0"))
                elif answer.status < 500:
                    said = answer.body[:160].decode("utf-8", "replace")
                    raise RequestRefused(f"{route}: {answer.status} {said}")
                else:
                    self._book.wrong(f"{route}: {answer.status}")
            await asyncio.sleep(least_s + random.uniform(0.0, pause_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _once(
        self,
        route: str,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        wait_s: float,
    ) -> Answer:
        start = time.monotonic()
        if not self._http.is_open:
            await self._http.open()
            self._book.met.took("connect", time.monotonic() - start)
            start = time.monotonic()
        answer = await self._http.ask(method, path, body, headers, wait_s)
        if answer.status == 200:
            self._book.met.answered += 1
            if route != "poll" and not wait_s:  # these wait: see `_heard_of`
                self._book.met.took(route, time.monotonic() - start)
        return answer
