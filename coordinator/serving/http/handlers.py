"""What all routes share: bodies read within a limit, refusals as one line of detail, and the header
by which devices tell the coordinator's own answers from those of something in between.
"""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.rounds.admission import Refusal
from coordinator.storage.blobs import BlobDamaged
from coordinator.storage.database import DatabaseBusy, DatabaseDamaged
from edge_client.wire.messages import OWN, PROTOCOL, WireError, encode, encode_brief

FULL_AGAIN_S = 20  # after which a device asks a full disk again
BUSY_AGAIN_S = 5
DRAIN_BYTES = 4 * 1024 * 1024  # read on that far, so that the sender gets to read the refusal
SIGNED = (OWN.lower().encode(), str(PROTOCOL).encode())


class Signed:
    """The application, whose every answer says that it is a coordinator's own.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), SIGNED]
            await send(message)

        await self._app(scope, receive, signed)


def add_handlers(app: FastAPI) -> None:
    """Let errors end in an answer with one line of detail, and sign every answer."""
    app.add_middleware(Signed)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(WireError, _no_message)
    app.add_exception_handler(RequestValidationError, _no_parameters)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(DatabaseBusy, _no_database)
    app.add_exception_handler(DatabaseDamaged, _damaged)
    app.add_exception_handler(BlobDamaged, _damaged)
    app.add_exception_handler(405, _no_method)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Read a body, keeping at most what is allowed.

    Raises:
        Refusal: 413, it is longer.
    """
    body, length = bytearray(), 0
    async for chunk in request.stream():
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
    line = " ".join(detail.split())[:500]
    return JSONResponse({"detail": line}, status_code=status, headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return _detail(error.status, error.detail, error.again_s)


async def _no_message(_: Request, error: Exception) -> Response:
    return _detail(422, str(error))


async def _no_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return _detail(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")


async def _no_database(_: Request, error: Exception) -> Response:
    said = str(error)
    if "disk is full" in said:
        return _detail(507, "the coordinator's disk is full; try again", FULL_AGAIN_S)
    if "database is locked" in said:  # a backup, or a command that takes long
        return _detail(503, "the coordinator's database is busy; try again", BUSY_AGAIN_S)
    if "readonly database" in said:
        return _detail(503, "the coordinator's disk is read-only; try again", FULL_AGAIN_S)
    raise error


async def _damaged(_: Request, __: Exception) -> Response:
    """The log says more, once and not for each that asks; what is damaged is for the operator."""
    told = "the coordinator's store is damaged; try again once its operator has restored it"
    return _detail(503, told, FULL_AGAIN_S)


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
