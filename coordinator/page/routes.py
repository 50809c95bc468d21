"""Routes of the operator's page: its files, login and logout, and the event stream.

GET    /, /page/*              the page: no outside address, no inline script; knows nothing
GET    /v1/operator/session    who is logged in, if anybody
POST   /v1/operator/session    exchange a token for a session cookie
DELETE /v1/operator/session    log out
GET    /v1/operator/events     server-sent events: the current state, then its changes
"""

import mimetypes
import time
from importlib import metadata
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from coordinator.operator.asking import BEARER, CARRIED, COOKIE, check_header, role_of, welcome
from coordinator.operator.fleet_schemas import LogIn, Session
from coordinator.operator.routes import PREFIX, Bounded
from coordinator.page.board import PageState
from coordinator.page.streams import News, Streams
from coordinator.rounds.admission import Refusal
from coordinator.serving.http.handlers import refusals
from coordinator.serving.http.polls import Bells
from coordinator.serving.service import Service
from coordinator.storage.operators import SESSION_S, Role, close_session, open_session

STATIC = Path(__file__).parent / "static"
POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src data:"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
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
NO_STORE = {"Cache-Control": "no-store"}


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
    files = {path.name: path.read_bytes() for path in STATIC.iterdir()}

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
        told = Session(role=role, version=_version() if role else None)
        return Response(told.model_dump_json(), headers=NO_STORE, media_type="application/json")

    @router.get("/session", tags=["page"], response_model=Session, responses=refusals(408, 413))
    def who(request: Request) -> Response:
        """Who is logged in; a role of null where nobody is."""
        return session(role_of(service.store, request, time.time()))

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
        "/session", tags=["page"], response_model=Session, responses=refusals(403, 408, 413)
    )
    def log_out(request: Request) -> Response:
        """Log out; who is not logged in may do that too."""
        check_header(request)
        if secret := request.cookies.get(COOKIE):
            close_session(service.store, secret)
        answer = session(None)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    app.include_router(router)


def _version() -> str:
    try:
        return metadata.version("smidgen")
    except metadata.PackageNotFoundError:  # a copy that was never installed
        return "unknown"
