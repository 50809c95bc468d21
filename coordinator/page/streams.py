"""Event streams for open pages: bounded in number and memory, and never in the way of a poll.

One task polls the coordinator once a second, and only while somebody listens. A slow reader holds
one message; all that changes meanwhile is one message too.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.operator.asking import BEARER, CARRIED, role_of
from coordinator.page.board import PageState, event
from coordinator.rounds.admission import Refusal
from coordinator.serving.http.handlers import refusals
from coordinator.serving.http.polls import Bells, heard
from coordinator.serving.service import Service
from coordinator.storage.dialects.postgres import DatabaseAway
from coordinator.watch.metrics import CONTENT_TYPE, CoordinatorStatus, Counted, Metrics

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

    def __init__(self, board: PageState, bells: Bells) -> None:
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


SLOWEST_TICK_S = 60.0  # a tick that averages a large cohort takes seconds
WORDS = "`driver`, `store`, `disk` or `stopping`."
LASTS_S = 2.0  # what was found holds; who asks more often costs no disk anything


def add_watching(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add what machines ask; every request is counted from here on."""
    metrics = Metrics(lambda: standing_of(service, service.now_s()))
    app.add_middleware(Counted, metrics=metrics)
    found: list[tuple[float, str]] = []

    @app.get(
        "/readyz",
        tags=["watching"],
        response_class=PlainTextResponse,
        responses={
            200: {"content": _text("ready")},
            503: {"content": _text("disk"), "description": WORDS},
        },
    )
    def ready() -> Response:
        """Whether devices and operators can be served now."""
        if bells.is_leaving:
            return PlainTextResponse("stopping", 503)
        now_s = time.monotonic()
        if not found or now_s - found[0][0] > LASTS_S:
            found[:] = [(now_s, lack(app, service, bells))]
        word = found[0][1]
        return PlainTextResponse(word or "ready", 503 if word else 200)

    @app.get(
        "/metrics",
        tags=["watching"],
        response_class=Response,
        responses={200: {"content": _text("smidgen_devices 3.0")}, **refusals(401, 429)},
        dependencies=[Depends(BEARER), Depends(CARRIED)],
    )
    async def count(request: Request) -> Response:
        """Runs, rounds, devices, answers, requests and this process, for Prometheus."""
        if await run_in_threadpool(role_of, service.store, request, time.time()) is None:
            raise Refusal(401, "an operator's or a viewer's token is expected")
        text = await run_in_threadpool(metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _text(example: str) -> dict[str, Any]:
    return {"text/plain": {"schema": {"type": "string"}, "example": example}}


def lack(app: FastAPI, service: Service, bells: Bells) -> str:
    silent_s = time.monotonic() - bells.ticked_s
    if bells.is_stopping or silent_s > SLOWEST_TICK_S:
        return "driver"
    if not (service.store.database.answers() and service.store.blobs.is_writable()):
        return "store"
    return "disk" if service.caretaker.is_full else ""


def standing_of(service: Service, now_s: float) -> CoordinatorStatus:
    """Where a coordinator stands, from its memory."""
    lives = service.runs()
    devices = [one for one in service.fleet.all() if one.revoked_at_s is None]
    steps = [live.state.step for live in lives if live.state.step is not None]
    return CoordinatorStatus(
        phases=Counter(live.state.phase for live in lives),
        rounds=sum(live.state.round_index for live in lives),
        devices=len(devices),
        here=sum(service.presence.is_here(one.device_id, now_s) for one in devices),
        asked=sum(len(step.members) - len(step.answers) for step in steps),
        answers=service.answers.by_outcome(),
    )
