"""Minimal HTTP/1.1 client for a thousand light devices: one connection each, on one event loop.

It reads only what a coordinator sends: a status line, headers, and a body of known length. A client
library would cost more than the server that is measured.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from edge_client.errors import Failed

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
    if not 0 <= length <= MOST_BODY_BYTES:
        raise ValueError("an answer without a length, or too long")
    return Answer(status, headers, await reader.readexactly(length))
