"""What all routes share: bounded bodies, refusals, the protocol header, and OpenAPI schemas.

By that header devices tell the coordinator's own answers from those of a proxy in between.
"""

import errno
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal

import msgspec
from anyio import fail_after
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.models import HTTPBearer
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from fastapi.security.base import SecurityBase
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.connection_limits import TokenBuckets, site_of
from smidgen.coordinator.storage.blobs import BlobDamaged, BlobsAway
from smidgen.coordinator.storage.credentials import bearer
from smidgen.coordinator.storage.database import BadValue, DatabaseBusy, DatabaseDamaged
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.edge_client.wire.fleet import DeviceFacts, Enrol, Enrolled, Membership
from smidgen.edge_client.wire.messages import (
    OWN,
    PROTOCOL,
    Report,
    Waiting,
    WireError,
    encode,
    encode_brief,
)
from smidgen.edge_client.wire.reports import Cost

LOG = logging.getLogger(__name__)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
FULL_AGAIN_S = 20  # after which a device asks a full disk again
BUSY_AGAIN_S = 5
DRAIN_BYTES = 4 * 1024 * 1024  # read on that far, so that the sender gets to read the refusal
LINGER_S = 2.0  # in which that is done
MESSAGE_S = 30.0  # for a message's body, and longer for a long one that comes
LEAST_RATE = 1024.0  # bytes a second of it, and of whatever a stranger sends
SIGNED = (OWN.lower().encode(), str(PROTOCOL).encode())


# Devices' own paths, whose answers no browser and no cache ever sees: 60 bytes less each.
OF_WORK = ("/v1/work", "/v1/runs/", "/v1/adapters/", "/v1/packs/")
GUARDS = {b"cache-control": b"no-store", b"x-content-type-options": b"nosniff"}


class Signed:
    """The application, whose every answer says that it is a coordinator's own.

    Answers to people and to strangers, tokens among them, are to be kept by no cache and taken for
    no other kind of content, where a route does not say otherwise.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", ())
                lacking = GUARDS.items() if not scope["path"].startswith(OF_WORK) else ()
                added = [pair for pair in lacking if pair[0] not in dict(given)]
                message["headers"] = [*given, SIGNED, *added]
            await send(message)

        await self._app(scope, receive, signed)


class Drained:
    """The application, after whose answers no body is left unread for ever.

    A little of it is read, so that its sender gets to read the answer; then the connection ends.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_read = is_asked = False
        # Its body is sent once it is asked for, and not before.
        waits = dict(scope["headers"]).get(b"expect", b"").lower() == b"100-continue"

        async def received() -> Message:
            nonlocal is_read, is_asked
            is_asked = True
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if not is_last or is_read or (waits and not is_asked):
                await send(message)
                return
            await send({**message, "more_body": True})
            await drain()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        async def drain() -> None:
            length = 0
            with suppress(TimeoutError):
                with fail_after(LINGER_S):
                    while not is_read and length <= DRAIN_BYTES:
                        length += len((await received()).get("body", b""))

        await self._app(scope, received, sent)


def _has_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def add_handlers(app: FastAPI, attempts: TokenBuckets | None = None) -> None:
    """Let errors end in an answer with one line of detail, and sign every answer.

    Args:
        app: Gets them.
        attempts: How often an address may show what lets nobody in; None: as often as it likes.
    """

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        if error.status == 401 and attempts is not None and request.client is not None:
            again_s = attempts.take(site_of(request.client.host), time.monotonic())
            if again_s:
                return _detail(429, "too many attempts from this address; try again", again_s)
        return _detail(error.status, error.detail, error.again_s)

    damaged = _damaged(set())
    app.add_middleware(Drained)
    app.add_middleware(Signed)
    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(WireError, _no_message)
    app.add_exception_handler(RequestValidationError, _no_parameters)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(DatabaseBusy, _no_database)
    for damage in (DatabaseDamaged, BlobDamaged):
        app.add_exception_handler(damage, damaged)
    app.add_exception_handler(DatabaseAway, _away)
    app.add_exception_handler(BadValue, _no_value)
    app.add_exception_handler(BlobsAway, _away)
    app.add_exception_handler(OSError, _no_room)
    app.add_exception_handler(405, _no_method)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Read a body, keeping at most what is allowed.

    Raises:
        Refusal: 413, it is longer; 408, it comes too slowly.
    """
    body, length, began_s = bytearray(), 0, time.monotonic()
    stream = request.stream()
    while True:
        left_s = began_s + MESSAGE_S + length / LEAST_RATE - time.monotonic()
        try:
            with fail_after(max(left_s, 0)):
                chunk = await anext(stream)
        except StopAsyncIteration:
            break
        except TimeoutError as error:
            raise Refusal(408, "the body comes too slowly; send it again") from error
        length += len(chunk)
        if length <= limit_bytes:
            body += chunk
        elif length > limit_bytes + DRAIN_BYTES:
            break
    if length > limit_bytes:
        raise Refusal(413, f"the body is over {limit_bytes} bytes")
    return bytes(body)


def json_of(message: Any, status: int = 200) -> Response:
    return Response(encode(message), status, media_type="application/json")


def brief_of(message: Any) -> Response:
    return Response(encode_brief(message), media_type="application/json")


def _detail(status: int, detail: str, again_s: int = 0) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if again_s:
        headers["Retry-After"] = str(again_s)
    return JSONResponse({"detail": " ".join(detail.split())[:500]}, status, headers)


async def _no_message(_: Request, error: Exception) -> Response:
    return _detail(422, str(error))


async def _no_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _detail(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")


async def _no_value(_: Request, __: Exception) -> Response:
    return _detail(422, "a value came that no database takes, such as the character 0")


async def _no_room(_: Request, error: Exception) -> Response:
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return _detail(503, "the coordinator's disk is read-only; try again", FULL_AGAIN_S)
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        raise error
    return _detail(507, "the coordinator's disk is full; try again", FULL_AGAIN_S)


async def _no_database(_: Request, error: Exception) -> Response:
    said = str(error)
    if "disk is full" in said:
        return _detail(507, "the coordinator's disk is full; try again", FULL_AGAIN_S)
    if "database is locked" in said:  # a backup, or a command that takes long
        return _detail(503, "the coordinator's database is busy; try again", BUSY_AGAIN_S)
    if "readonly database" in said:
        return _detail(503, "the coordinator's disk is read-only; try again", FULL_AGAIN_S)
    raise error


def _damaged(said: set[str]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """The log says more, once and not for each that asks; what is damaged is for the operator."""

    async def damaged(_: Request, error: Exception) -> Response:
        if isinstance(error, BlobDamaged) and str(error) not in said:  # of a database ticks say it
            said.add(str(error))
            LOG.error("%s", error)
        return _detail(
            503,
            "the coordinator's store is damaged; try again once its operator has restored it",
            FULL_AGAIN_S,
        )

    return damaged


async def _away(_: Request, error: Exception) -> Response:
    """Whatever was asked may have been done: to ask it again is as good as once."""
    what = "database" if isinstance(error, DatabaseAway) else "store of adapters"
    return _detail(503, f"the coordinator's {what} does not answer; try again", BUSY_AGAIN_S)


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


async def _no_method(request: Request, _: Exception) -> Response:
    """Starlette names the methods of the first route with this path alone."""
    path, known = request.url.path, set[str]()
    for route in iter_route_contexts(request.app.routes):
        if compile_path(str(route.path))[0].match(path):
            known |= set(route.methods or ())
    methods = ", ".join(sorted(known))
    answer = _detail(405, f"{request.method[:20]} is not known here; {methods} is")
    answer.headers["Allow"] = methods
    return answer


BYTES = {"type": "string", "format": "binary"}
FILE = {"application/octet-stream": {"schema": BYTES}}
UPDATE = {**BYTES, "description": "An update (a safetensors file), or what is missing of it."}
TENSORS = {"content": {"application/octet-stream": {"schema": UPDATE}}, "required": True}


FACTS = DeviceFacts(
    "aarch64", 4, 4_000_000_000, "3.11.2", "0.1.0", "onnx", "9f" * 32, 512_000_000, "Raspberry Pi 4"
)
ENROL = Enrol(PROTOCOL, "pi-kitchen", FACTS, "sEcReT", {"site": "kitchen"})
ENROLLED = Enrolled(PROTOCOL, "d0123456789abcdef0123", "pi-kitchen-2")
WAITING = Waiting("train", "mail", 3, 20, missing=1, asked=3, closes_in_s=412.0)
MEMBERSHIP = Membership("joined", peak_bytes=180_000_000)
COST = Cost(phases_s={"download": 0.4, "train": 31.5, "upload": 1.2})
REPORT = Report("w0a1b2c3d4e", "done", 24, loss=0.48, cost=COST)
SAID = {
    400: "The request cannot be read.",
    401: "The key or the token that is needed did not come, or counts no longer.",
    403: "Whoever asks may not do that.",
    404: "There is no such thing.",
    408: "The body stopped coming, or comes too slowly.",
    409: "It cannot be done as things stand.",
    413: "The body is longer than it may be.",
    422: "A value that is not expected.",
    429: "Too often; `Retry-After` says when to try again.",
    503: "Not now; try again.",
    507: "The disk is full; `Retry-After` says when to try again.",
}


class Detail(BaseModel):
    """A refusal, in one line."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"detail": "no run 'r0a1b2c3d4e'"}]}
    )

    detail: str


class Health(BaseModel):
    """A process that answers."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route's refusals are documented; by name, for each `model` would be built anew.

    The schema of that name is there: the route of packs gives `Detail` itself.
    """
    return {
        status: {
            "description": SAID[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Detail"}}},
        }
        for status in statuses
    }


class DeviceKey(SecurityBase):
    """A dependency that gives the bearer token of a request, None where none came."""

    def __init__(self) -> None:
        self.model = HTTPBearer(description="A device's key, which it drew itself.")
        self.scheme_name = "DeviceKey"

    async def __call__(self, request: Request) -> str | None:
        return bearer(request.headers.get("authorization"))


def gives(example: Any) -> dict[int | str, dict[str, Any]]:
    """How an answer that `wire` encodes is documented: by an example."""
    return {200: {"content": {"application/json": {"example": asdict(example)}}}}


def takes(example: Any) -> dict[str, Any]:
    """How a body that `wire` decodes is documented: by its own schema and an example."""
    (schema,), parts = msgspec.json.schema_components([type(example)], ref_template="{name}")
    body = {"schema": _whole(schema, parts), "example": asdict(example)}
    return {"requestBody": {"content": {"application/json": body}, "required": True}}


def _whole(schema: Any, parts: dict[str, Any]) -> Any:
    """A schema with its parts in their places; no message holds itself."""
    if isinstance(schema, list):
        return [_whole(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("$ref")
    if isinstance(named, str):
        return _whole(parts[named], parts)
    return {key: _whole(one, parts) for key, one in schema.items()}
