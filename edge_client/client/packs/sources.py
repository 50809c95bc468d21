"""Sources of base packs: a local folder, a URL, or the coordinator. None of them is trusted.

    with source.opened(base_id, "weights.safetensors", 4096) as (first, pieces):
        ...  # bytes from `first` on, which is 4096, or 0 if the source cannot resume

`Unreachable` means not available now, `NotHere` never available there. A URL is requested without
the device's key, without following redirects or decompressing, and each piece must arrive within
`TIMEOUT_S`. httpx bounds only single reads, so a server that sends a header byte now and then could
hold a device forever; `Deadline` bounds the whole request: another thread cuts the connection.

    deadline = Deadline(30.0)
    request = client.build_request("GET", url, extensions={"trace": deadline.trace})
    with deadline.running():
        response = client.send(request, stream=True)
"""

import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO, Protocol, TypeAlias

import httpx

from smidgen.edge_client.bases.manifest import is_pack, read_manifest
from smidgen.edge_client.client.connection import (
    PASSING,
    TOO_EARLY,
    Connection,
    Refused,
    Unreachable,
    asked_pause_s,
    http_client,
    no_answer,
    nobody,
    objection,
    pieces,
)
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.proxies import ProxyError
from smidgen.edge_client.wire.fleet import MANIFEST
from smidgen.edge_client.wire.messages import WireError


class Deadline:
    """Cuts the connection of a client that has one at a time.

    Args:
        seconds: For each thing that is asked for.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_over = seconds, False
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at each step of a request; learns of the connection."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._is_over:
                self._cut()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let what is done inside take that long and no longer.

        Raises:
            Unreachable: It took longer.
        """
        self._is_over = False
        timer = Timer(self._seconds, self._cut)
        timer.daemon = True
        timer.start()
        cause: Exception | None = None
        try:
            yield
        except (httpx.RequestError, Unreachable) as error:
            if not self._is_over:
                raise
            cause = error
        finally:
            timer.cancel()
        if self._is_over:  # a body without a length ends here as if it were whole
            raise Unreachable(f"nothing came within {self._seconds:g} s") from cause

    def _cut(self) -> None:
        self._is_over = True
        if self._socket is not None:
            with suppress(OSError):  # below TLS, which another thread is reading from
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


PIECE_BYTES = 128 << 10
TIMEOUT_S = 30.0
Opened: TypeAlias = "AbstractContextManager[tuple[int, Iterator[bytes]]]"


class NotHere(Failed):
    """A source that does not have a file; another one may."""


class PackSource(Protocol):
    """Where files come from."""

    @property
    def name(self) -> str: ...

    def opened(self, base_id: str, file: str, first: int) -> Opened:
        """A file from a byte on, or from its beginning where the source cannot do that.

        Raises:
            Unreachable: Not now.
            NotHere: Not there.
        """


class Folder:
    """A folder that holds packs: as folders of their ids or of other names, or is one itself."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)

    @contextmanager
    def opened(self, base_id: str, file: str, first: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """See `PackSource`."""
        path = self._folder
        try:
            path = self._found(base_id) / file
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for ever
            with os.fdopen(descriptor, "rb") as opened:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise NotHere(f"{path} is not a file")
                opened.seek(first)
                yield first, _read(opened, path)
        except FileNotFoundError as error:
            raise NotHere(f"{path} is not there") from error
        except OSError as error:
            raise Unreachable(f"{path} cannot be read: {error.strerror}") from error

    def _found(self, base_id: str) -> Path:
        by_id = self._folder / base_id
        if is_pack(by_id):
            return by_id
        try:
            places = [self._folder, *sorted(path for path in self._folder.iterdir())]
        except OSError as error:
            raise NotHere(f"--pack-mirror {self._folder}: {error.strerror}") from error
        for place in places:
            if is_pack(place) and _id_in(place) == base_id:
                return place
        raise NotHere(f"--pack-mirror {self._folder} holds no pack {base_id[:12]}")


def _read(opened: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        while piece := opened.read(PIECE_BYTES):
            yield piece
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror}") from error


def _id_in(folder: Path) -> str:
    try:
        return read_manifest(folder / MANIFEST).pack_id
    except (WrongInput, OSError):
        return ""


class Web:
    """An address under which files lie as `BASE_ID/FILE`.

    Args:
        url: Such as `https://host/packs`.
        timeout_s: How long to wait for it.

    Raises:
        WrongInput: It is not an address.
    """

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.name, self._context, self._timeout_s = url.rstrip("/"), nobody(), timeout_s
        if url.startswith("https://"):
            self._context = ssl.create_default_context()
        try:
            self._host = httpx.URL(self.name).host
            self._host.encode("idna")  # as connecting will
        except (httpx.InvalidURL, UnicodeError) as error:
            raise WrongInput(f"--pack-mirror {url!r} is not a URL: {error}") from error
        demand(bool(self._host), f"--pack-mirror {url!r}: https://HOST/PATH is expected")

    @contextmanager
    def opened(self, base_id: str, file: str, first: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """See `PackSource`."""
        headers = {"User-Agent": "smidgen", "Accept-Encoding": "identity"}
        asked = headers | ({"Range": f"bytes={first}-"} if first else {})
        path, deadline = f"/{base_id}/{file}", Deadline(self._timeout_s)
        traced = {"trace": deadline.trace}
        try:
            with http_client(self.name, self._context, timeout=self._timeout_s) as client:
                request = client.build_request("GET", path, headers=asked, extensions=traced)
                with deadline.running():
                    response = client.send(request, stream=True)
                with closing(response):
                    yield self._begun(response, first, deadline)
        except ProxyError as error:
            raise NotHere(f"{self.name}: {error}") from error
        except httpx.RequestError as error:
            found = objection(error)
            if found is None or found.verify_code == TOO_EARLY:  # that may be this board's clock
                raise no_answer(self.name, error, is_heard=True) from error
            raise NotHere(
                f"{self.name} shows a certificate that this system does not believe "
                f"({found.verify_message}); add its CA to the system's, or name it by SSL_CERT_FILE"
            ) from error

    def _begun(
        self, response: httpx.Response, first: int, deadline: Deadline
    ) -> tuple[int, Iterator[bytes]]:
        status = response.status_code
        if status >= 500 or status in PASSING:
            again_s = asked_pause_s(response.headers, datetime.now(timezone.utc))
            raise Unreachable(f"{self.name} answered {status}", again_s)
        if 300 <= status < 400:
            raise NotHere(f"{self.name} leads elsewhere ({status}); give the address it leads to")
        if status not in (200, 206, 416):
            raise NotHere(f"{self.name} answered {status}")
        return _placed(response, first, WorkMeter(), deadline)


class Served:
    """The coordinator, over a connection of its own, so that it is asked what is next meanwhile.

    Args:
        url: Its address.
        key: The device's.
        verify: Whose certificates are believed; None: nobody's.
        timeout_s: How long to wait for it.
        on_asked: Called after each request, whether it was answered or not.
    """

    def __init__(
        self,
        url: str,
        key: str,
        verify: ssl.SSLContext | None,
        timeout_s: float = TIMEOUT_S,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self._deadline = url, Deadline(timeout_s)
        self._connection = Connection(url, key, timeout_s, verify, self._deadline.trace, on_asked)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def opened(self, base_id: str, file: str, first: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """See `PackSource`."""
        headers = {"Range": f"bytes={first}-"} if first else {}
        path, meter = f"/v1/packs/{base_id}/{file}", WorkMeter()
        try:
            with ExitStack() as stack:
                with self._deadline.running():
                    asking = self._connection.asking("GET", path, meter, None, headers, (416,))
                    response = stack.enter_context(asking)
                yield _placed(response, first, meter, self._deadline)
        except Refused as error:
            raise NotHere(f"{self.name}: {error}") from error


def _placed(
    response: httpx.Response, first: int, meter: WorkMeter, deadline: Deadline
) -> tuple[int, Iterator[bytes]]:
    """Where a body begins, and its bytes.

    Raises:
        NotHere: The file ends before that, or comes packed.
    """
    if response.status_code == 416:
        raise NotHere("the file there is shorter than what is here of it")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise NotHere("the file there comes packed, which was not asked for")
    said = response.headers.get("Content-Range", "")
    is_part = response.status_code == 206
    if is_part and not said.startswith(f"bytes {first}-"):
        raise NotHere("another part of the file came than was asked for")
    return (first if is_part else 0), _all_of(response, meter, deadline)


def _all_of(response: httpx.Response, meter: WorkMeter, deadline: Deadline) -> Iterator[bytes]:
    coming = pieces(response, meter, 2**63)
    try:
        while True:
            with deadline.running():
                piece = next(coming, None)
            if piece is None:
                return
            yield piece
    except WireError as error:
        raise NotHere(str(error)) from error
    except httpx.RequestError as error:
        raise Unreachable(f"the connection broke: {error or type(error).__name__}") from error


def source_of(said: str) -> PackSource:
    """A mirror as `--pack-mirror` gives it: an address, or a folder.

    Raises:
        WrongInput: It is neither.
    """
    if said.startswith(("https://", "http://")):
        return Web(said)
    demand("://" not in said, f"--pack-mirror {said!r}: https://HOST/PATH or a folder is expected")
    return Folder(Path(said))
