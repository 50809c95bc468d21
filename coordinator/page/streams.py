"""Streams of news for open pages: few, each as fast as its reader, and none that a poll waits for.

One task looks at the coordinator once a second, and only while somebody listens. A slow reader
holds one message; what has changed meanwhile is one message too.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.page.board import Board, event
from coordinator.rounds.admission import Refusal
from coordinator.serving.http.polls import Bells, heard
from coordinator.storage.dialects.postgres import DatabaseAway

MOST = 16  # pages at once
LOOK_S = 1.0
LONGEST_REST_S = 15.0
BEAT_S = 15.0  # between two signs of life
READERS, LOOKER = "page/readers", "page/looker"  # names of bells; no device has such an id
LOG = logging.getLogger(__name__)


class News(StreamingResponse):
    """A stream that gives its place back, also where it was cut before its first word.

    Args:
        streams: Gave the place.
        is_allowed: Asked again at every sign of life.
    """

    def __init__(self, streams: "Streams", is_allowed: Callable[[], Awaitable[bool]]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(streams.told(is_allowed), 200, headers, "text/event-stream")
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.leave()


class Streams:
    """The streams of one coordinator; used on its event loop only.

    Args:
        board: What they tell of.
        bells: Rung when there is news, and when everything ends.
    """

    def __init__(self, board: Board, bells: Bells) -> None:
        self._board, self._bells = board, bells
        self._open = 0
        self._looking: asyncio.Task[None] | None = None

    def take(self) -> None:
        """Take a place for a page, or refuse one page too many; `leave` gives it back.

        Raises:
            Refusal: 503.
        """
        if self._open >= MOST:
            raise Refusal(503, f"{MOST} pages are open already; close one of them")
        self._open += 1

    def leave(self) -> None:
        self._open -= 1

    async def told(self, is_allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
        """News as server-sent events, from all there is on to what changes, until it is over.

        Args:
            is_allowed: Asked again at every sign of life.
        """
        version, beat_s = 0, time.monotonic()
        with self._bells.bell(READERS) as bell:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look())
            while not self._bells.is_stopping:
                bell.clear()
                if self._board.version > version:
                    now_s = self._board.now_s()
                    text, version = await run_in_threadpool(self._board.since, version, now_s)
                    if text:
                        yield text
                if time.monotonic() - beat_s >= BEAT_S:
                    beat_s = time.monotonic()
                    try:
                        if not await is_allowed():
                            return
                    except DatabaseAway:  # nobody knows who may look; the page asks again
                        return
                    yield event("beat", {"at_s": self._board.now_s()})
                await heard(bell, BEAT_S)

    async def _look(self) -> None:
        """Keep the board up to date while anybody listens."""
        is_broken = False
        with self._bells.bell(LOOKER) as bell:
            while self._open and not self._bells.is_stopping:
                began_s = time.monotonic()
                try:
                    await run_in_threadpool(self._board.update, self._board.now_s())
                    is_broken = False
                except Exception:  # the edge: a store that cannot be read may be read again later
                    if not is_broken:
                        LOG.exception("the page stands still; trying again")
                    is_broken = True
                self._bells.ring_now(READERS)
                await heard(bell, rest_after(time.monotonic() - began_s))
        self._looking = None


def rest_after(took_s: float) -> float:
    """Seconds without a look after one that took so long.

    A large fleet is looked at less often, so that looking takes a tenth of the time; a look that
    was slow for another reason must not still the page for minutes.
    """
    return min(max(LOOK_S, 9 * took_s), LONGEST_REST_S)
