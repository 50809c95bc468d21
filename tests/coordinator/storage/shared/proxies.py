"""What stands between a coordinator and its servers, and breaks things on the way."""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from smidgen.edge_client.client.connection import nobody

DENIED = (
    b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)
KEPT = (
    b"<?xml version='1.0'?><DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code>"
    b"<Message>Access Denied</Message></Error></DeleteResult>"
)
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate."
    b"</Message></Error>"
)
OWN = {"content-length", "transfer-encoding", "connection", "content-encoding"}
XML = {"Content-Type": "application/xml"}
FAULTS: tuple[str, ...] = ("refused", "request cut", "answer cut", "answer lost", "late")
LONGEST_S = 1.5  # of what comes late


class Way(ThreadingHTTPServer):
    """A way to a server of S3.

    Args:
        behind: The real one.
        handler: What is done with a request.
    """

    daemon_threads = True

    def __init__(self, behind: str, handler: type["_Passing"]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.behind = behind

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has gone."""


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Way

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: who asks says what went wrong."""

    def body(self, share: float = 1.0) -> bytes:
        return self.rfile.read(int(share * int(self.headers.get("Content-Length", 0))))

    def ask(self, body: bytes) -> httpx.Response:
        """What the real one says."""
        told, url = dict(self.headers), f"{self.server.behind}{self.path}"
        trust = nobody()
        return httpx.request(
            self.command, url, headers=told, content=body, timeout=60, verify=trust
        )

    def send(self, status: int, headers: dict[str, str], body: bytes, share: float = 1.0) -> None:
        """Answer, with a share of the body."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in OWN:
                self.send_header(name, value)
        length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: int(share * len(body))])


class Refusing(Way):
    """A server of S3 whose rights may be taken away.

    Attributes:
        lists: Whether it lists.
        deletes: Whether it deletes.
    """

    def __init__(self, behind: str) -> None:
        super().__init__(behind, _Refused)
        self.lists, self.deletes = True, True


class _Refused(_Passing):
    server: Refusing

    def answer(self) -> None:
        body, query = self.body(), urlsplit(self.path).query
        if "list-type" in query and not self.server.lists:
            self.send(403, XML, DENIED)
        elif self.command == "POST" and "delete" in query and not self.server.deletes:
            self.send(200, XML, KEPT)
        else:
            got = self.ask(body)
            self.send(got.status_code, dict(got.headers), got.content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer


class Disturbing(Way):
    """A server of S3 that has too much to do: it refuses, cuts and delays, by chance.

    Attributes:
        share: Of the requests, how many go wrong.
        kinds: How they do.
        faults: How often each has come.
    """

    def __init__(self, behind: str, seed: int) -> None:
        super().__init__(behind, _Disturbed)
        self.share, self.kinds, self.faults = 0.0, FAULTS, Counter[str]()
        self._draw, self._drawing = random.Random(seed), threading.Lock()

    def draw(self) -> tuple[str, float]:
        """What becomes of the next request, and how far or how late."""
        with self._drawing:
            kind = self._draw.choice(self.kinds) if self._draw.random() < self.share else "none"
            self.faults[kind] += 1
            return kind, self._draw.random()


class _Disturbed(_Passing):
    server: Disturbing

    def answer(self) -> None:
        kind, part = self.server.draw()
        self.close_connection = kind in ("request cut", "answer cut", "answer lost")
        if kind == "request cut":
            self.body(part)
            return
        body = self.body()
        if kind == "refused":
            self.send(503, XML, SLOW_DOWN)
            return
        if kind == "late":
            time.sleep(part * LONGEST_S)
        got, share = self.ask(body), part if kind == "answer cut" else 1.0
        if kind != "answer lost":
            self.send(got.status_code, dict(got.headers), got.content, share)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer


@contextmanager
def refusing(behind: str) -> Iterator[Refusing]:
    with _serving(Refusing(behind)) as way:
        yield way


@contextmanager
def disturbing(behind: str, seed: int) -> Iterator[Disturbing]:
    with _serving(Disturbing(behind, seed)) as way:
        yield way


W = TypeVar("W", bound=Way)


@contextmanager
def _serving(way: W) -> Iterator[W]:
    with way:
        thread = threading.Thread(target=way.serve_forever)
        thread.start()
        try:
            yield way
        finally:
            way.shutdown()
            thread.join()


class LosingAnswers:
    """A way to PostgreSQL on which the answer to a COMMIT may be lost.

    Args:
        port: Of the server.

    Attributes:
        port: Of this way.
        is_losing: Whether the next answer to a COMMIT is lost, and its connection.
    """

    def __init__(self, port: int) -> None:
        self.is_losing, self._behind = False, port
        self._bound = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._bound.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._bound.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._bound.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
                lost = threading.Event()
                for ways in ((client, server, lost, True), (server, client, lost, False)):
                    threading.Thread(target=self._pass, args=ways, daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, lost: threading.Event, is_asking: bool
    ) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                if is_asking and self.is_losing and b"COMMIT\0" in data:
                    self.is_losing = False
                    lost.set()
                if not is_asking and lost.is_set():
                    target.shutdown(socket.SHUT_RDWR)
                    return  # it is written, and nobody hears of it
                target.sendall(data)
