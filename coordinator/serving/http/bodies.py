"""Request and response bodies: partial uploads, draining unread bodies, files by hash and range."""

import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from anyio import fail_after
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.handlers import DRAIN_BYTES, LINGER_S
from smidgen.edge_client.wire.tensors import digest_header

SILENCE_S = 60.0  # in which a body must go on


def span_of(content_range: str | None) -> tuple[int, float]:
    """Where the bytes that are sent begin, and how many the whole has; of a whole nobody says.

    Raises:
        Refusal: 400, they do not go to the end.
    """
    if content_range is None:
        return 0, math.inf
    found = re.fullmatch(r"bytes (?:(\d{1,15})-(\d{1,15})|\*)/(\d{1,15})", content_range.strip())
    if found is None or (found[1] and not int(found[1]) <= int(found[2]) == int(found[3]) - 1):
        raise Refusal(400, "Content-Range: `bytes FIRST-LAST/ALL` up to the end, or `bytes */ALL`")
    return int(found[1] or found[3]), int(found[3])


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """A body as it comes.

    Raises:
        Refusal: 408, nothing has come for a while.
        ClientDisconnect: It was cut.
    """
    stream = request.stream()
    while True:
        try:
            with fail_after(SILENCE_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Refusal(
                408, f"nothing of the body came for {SILENCE_S:g} s; what has arrived is kept"
            ) from error
        yield piece


async def drain(pieces: AsyncIterator[bytes]) -> None:
    """Read on for a moment where a body was not wanted, so that its sender gets to read why."""
    length = 0
    with suppress(Refusal, ClientDisconnect, TimeoutError):
        with fail_after(LINGER_S):
            async for piece in pieces:
                length += len(piece)
                if length > DRAIN_BYTES:
                    return


def headers_of(name: str) -> dict[str, str]:
    told = {"ETag": f'"{name}"', "Repr-Digest": digest_header(name)}
    return {**told, "Cache-Control": "immutable"}


def past_the_end(wanted: str | None, size: int, headers: Mapping[str, str]) -> Response | None:
    """The answer to a `Range` that begins behind a file's last byte; None: it does not.

    Raises:
        Refusal: 400, it is not one part of a file.
    """
    if wanted is None or first_of(wanted) < size:
        return None
    detail = {"detail": f"the file has {size} bytes"}
    return JSONResponse(detail, 416, {**headers, "Content-Range": f"bytes */{size}"})


def first_of(header: str) -> int:
    """Where the part begins that a `Range` asks for."""
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", header)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise Refusal(400, "Range: `bytes=FIRST-` or `bytes=FIRST-LAST` is expected")
    return int(found[1])
