"""`GET /v1/packs/{base_id}/{file}`: a run's base for devices that fetch it, where that is allowed.

A file goes out in pieces, a few files at a time: a fleet that begins to fetch on one day does not
keep reports and updates waiting.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from coordinator.rounds.admission import Refusal
from coordinator.serving.http.bodies import headers_of, past_the_end
from coordinator.serving.http.documented import FILE, Detail, refusals
from coordinator.serving.packs import AT_ONCE
from edge_client.wire.packs import FILE_NAME, SHA_256, PackFile

PIECE_BYTES = 64 << 10  # held for each file that is under way
EACH = 2  # files of one device: a connection that was cut may still look alive
AGAIN_S = 5


class Turns:
    """The files that are under way; safe to use from several threads.

    Args:
        most: As many as there may be.
        each: As many as one device may have.
    """

    def __init__(self, most: int, each: int = EACH) -> None:
        self._most, self._each, self._lock = most, each, Lock()
        self._taken = Counter[str]()

    def take(self, device_id: str) -> bool:
        """Begin with a file; false where there is no turn."""
        with self._lock:
            is_full = self._taken.total() >= self._most or self._taken[device_id] >= self._each
            if not is_full:
                self._taken[device_id] += 1
            return not is_full

    def give_back(self, device_id: str) -> None:
        """The file is out, or its device gone."""
        with self._lock:
            self._taken[device_id] -= 1
            self._taken += Counter[str]()  # forgets who has none


class Sent(FileResponse):
    """A file that keeps its turn until the last byte is out or the device is gone."""

    chunk_size = PIECE_BYTES

    def __init__(self, path: Path, headers: dict[str, str], over: Callable[[], None]) -> None:
        super().__init__(path, headers=headers)
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def add_pack_route(
    app: FastAPI,
    device_of: Callable[..., Any],
    file_of: Callable[[Any, str, str], tuple[Path, PackFile] | None],
    most: int = AT_ONCE,
) -> None:
    """Add it.

    Args:
        app: Gets it.
        device_of: Depends on a request; the device that sent it.
        file_of: A pack's file by base id and name, if this device may have it; in a thread.
        most: Files that are under way at a time.
    """
    Known = Annotated[Any, Depends(device_of)]
    turns = Turns(most)

    @app.get(
        "/v1/packs/{base_id}/{name}",
        tags=["devices' own"],
        response_class=FileResponse,
        responses={
            200: {"content": FILE, "description": "A file of a base pack."},
            206: {"content": FILE, "description": "The part that `Range` asked for."},
            416: {"model": Detail, "description": "`Content-Range` says how long it is."},
            **refusals(400, 401, 404, 422, 429, 503),
        },
    )
    def pack_file(
        device: Known,
        base_id: str,
        name: str,
        wanted: Annotated[str | None, Header(alias="Range")] = None,
    ) -> Response:
        """A file of the base of a run that asks this device, where the coordinator serves packs."""
        is_plain = SHA_256.fullmatch(base_id) is not None and FILE_NAME.fullmatch(name) is not None
        found = file_of(device, base_id, name) if is_plain else None
        if found is None:
            raise Refusal(404, f"no file {name[:64]!r} of a pack {base_id[:64]!r} is served here")
        path, told = found
        if not path.is_file() or path.stat().st_size != told.bytes:
            raise Refusal(
                404, f"{name} of pack {base_id[:12]} is not what it was; ask its operator"
            )
        headers = headers_of(told.sha256)
        if (past := past_the_end(wanted, told.bytes, headers)) is not None:
            return past
        if not turns.take(device.device_id):
            raise Refusal(503, "other devices fetch packs now; try again", AGAIN_S)
        return Sent(path, headers, partial(turns.give_back, device.device_id))
