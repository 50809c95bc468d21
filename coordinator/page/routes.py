"""Routes of the operator's page: its files, login and logout, and the event stream.

GET    /, /page/*              the page: no outside address, no inline script; knows nothing
GET    /v1/operator/session    who is logged in, if anybody
POST   /v1/operator/session    exchange a token for a session cookie
DELETE /v1/operator/session    log out
GET    /v1/operator/events     server-sent events: the current state, then its changes

One task polls the coordinator once a second, and only while somebody listens. A slow reader holds
one message; all that changes meanwhile is one message too.
"""

import asyncio
import logging
import mimetypes
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from smidgen import __version__
from smidgen.coordinator.operator.asking import (
    BEARER,
    CARRIED,
    COOKIE,
    NOBODY,
    check_header,
    role_of,
    welcome,
)
from smidgen.coordinator.operator.routes import PREFIX, Bounded
from smidgen.coordinator.operator.schemas import LogIn, Session
from smidgen.coordinator.page.board import PageState, event
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.handlers import refusals
from smidgen.coordinator.serving.http.polls import Bells, heard
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.credentials import (
    SESSION_S,
    Role,
    close_session,
    open_session,
    role_of_session,
)
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.watch.metrics import CONTENT_TYPE, CoordinatorStatus, Counted, Metrics

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
        headers = {"X-Accel-Buffering": "no"}
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


POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src data:"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
EVENTS = {
    "text/event-stream": {
        "schema": {"type": "string"},
        "example": 'event: beat\ndata: {"at_s":1790000000.0}\n\n',
    }
}


def add_page(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add the page's routes to the coordinator."""
    _add_files(app)
    _add_session(app, service)
    streams = Streams(PageState(service), bells)

    @app.get(
        "/v1/operator/events",
        tags=["page"],
        response_class=StreamingResponse,
        responses={200: {"content": EVENTS}, **refusals(401, 429, 503)},
        dependencies=[Depends(BEARER), Depends(CARRIED)],
    )
    async def events(request: Request) -> Response:
        """What is, then what changes, for as long as the session lasts."""

        async def role() -> Role | None:
            return await run_in_threadpool(role_of, service.store, request, time.time())

        if (found := await role()) is None:
            raise Refusal(401, "an operator's or a viewer's token is expected")
        welcome(request, found)  # or the stream would be cut as a stranger's

        async def is_allowed() -> bool:
            return await role() is not None

        streams.take()
        return News(streams, is_allowed)


def _add_files(app: FastAPI) -> None:
    files = {path.name: path.read_bytes() for path in (Path(__file__).parent / "static").iterdir()}

    def file(name: str) -> Response:
        if name not in files:
            raise Refusal(404, f"no file {name[:64]!r}")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(files[name], headers=HEADERS, media_type=kind)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return file(name)


def _add_session(app: FastAPI, service: Service) -> None:
    # Nobody has shown a token yet: no more of a body is read than a message may have.
    router = APIRouter(prefix=PREFIX, route_class=Bounded)

    def session(role: Role | None) -> Response:
        told = Session(role=role, version=__version__ if role else None)
        return Response(told.model_dump_json(), media_type="application/json")

    @router.get(
        "/session", tags=["page"], response_model=Session, responses=refusals(401, 408, 413, 429)
    )
    def who(request: Request) -> Response:
        """Who is logged in; a role of null where nobody is, 401 where a secret is nobody's."""
        role = role_of(service.store, request, time.time())
        if role is None and (COOKIE in request.cookies or "authorization" in request.headers):
            raise Refusal(401, NOBODY)
        return session(role)

    @router.post(
        "/session",
        tags=["page"],
        response_model=Session,
        responses=refusals(401, 403, 408, 413, 422, 429),
    )
    def log_in(request: Request, message: LogIn) -> Response:
        """Log in by a token; the cookie that comes back stands for it for half a day."""
        check_header(request)
        opened = open_session(service.store, message.token, time.time())
        if opened is None:
            raise Refusal(401, "nobody has this token; it may have been revoked")
        secret, role = opened
        answer = session(role)
        answer.set_cookie(
            COOKIE,
            secret,
            max_age=int(SESSION_S),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    @router.delete(
        "/session",
        tags=["page"],
        response_model=Session,
        responses=refusals(401, 403, 408, 413, 429),
    )
    def log_out(request: Request) -> Response:
        """Log out; who is not logged in may do that too."""
        check_header(request)
        if secret := request.cookies.get(COOKIE):
            if role_of_session(service.store, secret, time.time()) is None:
                raise Refusal(401, "nobody is logged in by this cookie; it may be over")
            close_session(service.store, secret)
        answer = session(None)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    app.include_router(router)
