"""A real server of the transfer routes alone: it takes updates of any bytes, and tells of each.

with serving(folder) as server:
    httpx.put(f"{server.url}/v1/work/w/update", content=body, headers=...)
server.taken["w"]  # SHA-256 of the body that counts
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from smidgen.coordinator.serving.device_routes import add_transfer_routes
from smidgen.coordinator.serving.http.handlers import add_handlers
from smidgen.coordinator.serving.http.uploads import Judge, Uploads
from smidgen.coordinator.serving.server import listen
from smidgen.coordinator.storage.blobs import FolderBlobs
from smidgen.edge_client.wire.messages import Receipt


class SmallServer:
    """What it holds, and what was asked of it.

    Attributes:
        blobs: Where whole bodies lie.
        uploads: Where parts of bodies lie.
        port: Where it listens.
        most_bytes: How long a body may be.
        taken: SHA-256 of the body that counts, by work.
        counted: How often a body of a work began to count.
        requests: Method and `Content-Range` or `Range` of each request, in the order they came.
        received: Bytes of bodies that the routes have read.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.blobs, self.uploads = folder / "blobs", folder / "uploads"
        self.blobs.mkdir(exist_ok=True)
        self.most_bytes = most_bytes
        self.taken: dict[str, str] = {}
        self.counted: Counter[str] = Counter()
        self.requests: list[tuple[str, str]] = []
        self.received = 0
        self._lock = threading.Lock()
        self.bound = listen("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def forget(self) -> None:
        """Begin again; files stay."""
        self.taken.clear()
        self.counted.clear()
        self.requests.clear()
        self.received = 0

    def offer(self, body: bytes) -> str:
        """An adapter to fetch; its SHA-256."""
        return FolderBlobs(self.blobs).put(body)

    def body_of(self, work_id: str) -> bytes:
        """The body that counts for a work, as it lies on the disk."""
        return (self.blobs / self.taken[work_id]).read_bytes()

    def judge_of(self, _: Any, work_id: str) -> Judge:
        def known(name: str) -> Receipt | None:
            with self._lock:
                taken = self.taken.get(work_id)
            if taken is None:
                return None
            return Receipt(taken == name, "" if taken == name else "answered already")

        def accept(path: Path, name: str) -> Receipt:
            FolderBlobs(self.blobs).keep(path, name)
            with self._lock:
                self.taken[work_id] = name
                self.counted[work_id] += 1
            return Receipt(True)

        return Judge(self.most_bytes, known, accept)

    def app(self) -> Any:
        app = FastAPI()
        add_handlers(app)
        uploads = Uploads(self.uploads)
        add_transfer_routes(
            app, lambda: None, self.judge_of, self._adapter_of, uploads, asyncio.Event()
        )

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                part = headers.get(b"content-range") or headers.get(b"range") or b""
                self.requests.append((scope["method"], part.decode()))

            async def counted() -> Message:
                message = await receive()
                self.received += len(message.get("body", b""))
                return message

            await app(scope, counted, send)

        return noted

    def _adapter_of(self, _: Any, name: str) -> Path | None:
        path = self.blobs / name
        return path if path.is_file() else None


@contextmanager
def serving(folder: Path, most_bytes: int = 4 << 20) -> Iterator[SmallServer]:
    """Serve while inside; another one on the same folder goes on with its files."""
    small = SmallServer(folder, most_bytes)
    config = uvicorn.Config(
        small.app(), log_level="error", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [small.bound]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield small
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)
        small.bound.close()
