"""Bodies of requests: as they come, which part of a whole, and reading on what nobody wants."""

import math
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from anyio import fail_after
from fastapi import Request
from starlette.requests import ClientDisconnect

from coordinator.rounds.admission import Refusal
from coordinator.serving.http.handlers import DRAIN_BYTES, LINGER_S

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
            said = f"nothing of the body came for {SILENCE_S:g} s; what has arrived is kept"
            raise Refusal(408, said) from error
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
