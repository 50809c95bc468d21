"""Small real packs, what a coordinator announces of them, and sources that give what they like."""

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from smidgen.edge_client.bases.manifest import MANIFEST, read_manifest
from smidgen.edge_client.bases.packing import pack_model
from smidgen.edge_client.client.packs.fetch import Fetch
from smidgen.edge_client.client.packs.shelf import Shelf
from smidgen.edge_client.client.packs.sources import PackSource
from smidgen.edge_client.wire.fleet import Pack, PackFile
from tests.tiny import write_tiny_base

ROOM = 1 << 30
Bytes = Callable[[str, int], Iterator[bytes]]  # of a file from a byte on


def make_pack(folder: Path, seed: int = 0, licence: str | None = "mit") -> tuple[str, Path]:
    """A tiny pack; its id and where it lies."""
    model = write_tiny_base(folder / f"model-{seed}", seed=seed)
    packed = pack_model(str(model), 8, folder / f"pack-{seed}", licence)
    return packed.manifest.pack_id, packed.folder


def announced(folder: Path, mirrors: tuple[str, ...] = (), is_served: bool = False) -> Pack:
    """What is said of a pack."""
    manifest = read_manifest(folder / MANIFEST)
    files = {path.name: told_of(path.read_bytes()) for path in folder.iterdir()}
    return Pack(manifest.name, manifest.licence or "", files, mirrors, is_served)


def told_of(body: bytes) -> PackFile:
    return PackFile(len(body), hashlib.sha256(body).hexdigest())


def contents(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@dataclass
class Script:
    """A source that says what its function gives, and remembers what it was asked.

    Attributes:
        give: Its bytes; an error ends them.
        is_ranged: Whether it begins where it is asked to.
        asked: Files and first bytes.
    """

    give: Bytes
    name: str = "script"
    is_ranged: bool = True
    asked: list[tuple[str, int]] = field(default_factory=list)

    @contextmanager
    def opened(self, base_id: str, file: str, first: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        self.asked.append((file, first))
        begin = first if self.is_ranged else 0
        yield begin, self.give(file, begin)


def from_folder(folder: Path, piece: int = 4096) -> Bytes:
    def give(file: str, first: int) -> Iterator[bytes]:
        body = (folder / file).read_bytes()[first:]
        return (body[start : start + piece] for start in range(0, len(body), piece))

    return give


def fetch_of(
    shelf: Shelf, pack: tuple[str, Path], *sources: PackSource, most_rounds: int = 2
) -> Fetch:
    return Fetch(shelf, pack[0], announced(pack[1]), sources, most_rounds=most_rounds)


@contextmanager
def served(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A web server; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.block_on_close = True, False
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
