"""HTTP routes for devices, those of `smidgen.edge_client.wire.messages`.

`wire` and `admission` check bytes, not the web framework: a request from outside ends in an answer,
or in 4xx with one line of detail. Store work runs in threads; waiting does not.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.connection_limits import TokenBuckets, let_in
from smidgen.coordinator.serving.http.handlers import (
    ENROL,
    ENROLLED,
    FILE,
    FULL_AGAIN_S,
    MEMBERSHIP,
    REPORT,
    SAID,
    TENSORS,
    WAITING,
    Detail,
    DeviceKey,
    Health,
    brief_of,
    gives,
    json_of,
    read_body,
    refusals,
    takes,
)
from smidgen.coordinator.serving.http.polls import POLLS, Bells
from smidgen.coordinator.serving.http.uploads import Judge, Uploads, headers_of, past_the_end
from smidgen.coordinator.serving.packs import add_pack_route
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.devices import Device
from smidgen.edge_client.wire.fleet import LONGEST_LIFE, Enrol, Enrolled, Membership
from smidgen.edge_client.wire.messages import MAX_JSON_BYTES, Next, Receipt, Report, decode
from smidgen.edge_client.wire.tensors import digest_in

LONGEST_POLL_S = 60.0
PIECE_BYTES = 16 << 10  # of an adapter that is sent: held for each device
SMALL_BYTES = 8 << 20  # adapters up to here are sent from memory
REQUESTS, REQUESTS_PER_S = 1000, 100.0  # of one device: many times what any needs
SHA_256 = "(^|[ ,])sha-256=:[A-Za-z0-9+/]{43}=:"
Life = Annotated[
    str, Query(max_length=LONGEST_LIFE, description="Drawn by the client at its start.")
]
Digest = Annotated[str, Header(alias="Repr-Digest", pattern=SHA_256)]
TAGS: list[str | Enum] = ["devices' own"]


def add_device_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add what devices ask, beside their transfers."""

    # What is in memory is looked up on the event loop: a hop to a thread costs more.
    Key = Annotated[str | None, Depends(DeviceKey())]

    paces = TokenBuckets(REQUESTS, REQUESTS_PER_S)

    def keep_pace(device: Device) -> None:
        if again_s := paces.take(device.device_id, time.monotonic()):
            raise Refusal(429, "this device asks too often; try again", again_s)

    async def device_of(request: Request, key: Key) -> Device:
        if service.neighbours.may_be and key and service.fleet.of_key(key) is None:
            await run_in_threadpool(service.neighbours.devices)  # it may just have enrolled there
        device = service.device_of(key)
        let_in(request.scope, device.device_id)
        keep_pace(device)
        return device

    Known = Annotated[Device, Depends(device_of)]

    @app.post(
        "/v1/enrol",
        tags=TAGS,
        response_model=Enrolled,
        responses=gives(ENROLLED) | refusals(401, 408, 413, 422, 429, 507),
        openapi_extra=takes(ENROL),
    )
    async def enrol(request: Request, key: Key) -> Response:
        """Say who it is: the first time with a token, then at each start."""
        if (known := service.fleet.of_key(key or "")) is not None:
            keep_pace(known)
        message = decode(await read_body(request, MAX_JSON_BYTES), Enrol)
        enrolled = await run_in_threadpool(
            service.enrol, message, key, service.now_s(), time.time()
        )
        let_in(request.scope, enrolled.device_id)
        bells.ring([enrolled.device_id])  # an older client that polls is not this device any more
        bells.changed.set()
        return json_of(enrolled)

    @app.get(
        "/v1/work",
        tags=TAGS,
        response_model=Next,
        responses=gives(Next(waiting=WAITING)) | refusals(401, 409, 422, 429),
    )
    async def work(key: Key, device: Known, life: Life = "", wait_s: float = 0.0) -> Response:
        """What it does next; waits for that up to so many seconds, a minute at most."""
        return brief_of(await awaited(key, device, life, wait_s))

    async def awaited(key: str | None, device: Device, life: str, wait_s: float) -> Next:
        wait_s = min(wait_s, LONGEST_POLL_S) if wait_s > 0 else 0.0
        with bells.bell(device.device_id, POLLS) as bell:
            given = await next_of(device, life)
            if given.waiting and wait_s and not bells.is_stopping:
                await bells.heard(bell, wait_s)
                # It may be revoked by now, or have started again.
                given = await next_of(service.device_of(key), life)
        return given

    async def next_of(device: Device, life: str) -> Next:
        try:
            if not service.lives.is_newest(
                device.device_id, life, device.life
            ):  # then others may know more
                await run_in_threadpool(service.check_life, device, life, service.now_s())
        except Refusal:
            bells.changed.set()  # what was found is written down
            raise
        if service.saw(device, service.now_s()):
            bells.changed.set()  # it may be the one that a round waits for
        if service.is_at_hand(device):
            return service.next(device, service.now_s())
        return await run_in_threadpool(service.next, device, service.now_s())

    @app.post(
        "/v1/runs/{run_id}/membership",
        tags=TAGS,
        response_model=Receipt,
        responses=gives(Receipt(True)) | refusals(401, 403, 404, 408, 413, 422, 429, 507),
        openapi_extra=takes(MEMBERSHIP),
    )
    async def membership(request: Request, device: Known, run_id: str) -> Response:
        """Answer a run's invitation, or say that its adapter is at home."""
        told = decode(await read_body(request, MAX_JSON_BYTES), Membership)
        receipt = await run_in_threadpool(service.membership, device, run_id, told, service.now_s())
        bells.changed.set()
        return brief_of(receipt)

    def judge_of(device: Device, work_id: str) -> Judge:
        judge = service.answers.judge(device, work_id)

        def known(name: str) -> Receipt | None:
            receipt = judge.known(name)
            if receipt is None and service.caretaker.is_full:
                raise Refusal(507, "the coordinator's disk is full; try again", FULL_AGAIN_S)
            return receipt

        return replace(judge, known=known, heard=lambda: service.saw(device, service.now_s()))

    def adapter_of(device: Device, name: str) -> Path | None:
        if not service.is_adapter_for(device, name):
            return None
        path = service.adapter_path(name)
        if not path.is_file():
            return None  # so a device polls again, and hears of its other runs' work
        service.store.check(name)
        return path

    add_pack_route(app, device_of, service.pack_file)
    uploads = Uploads(service.store.uploads, bells.aside)
    add_transfer_routes(app, device_of, judge_of, adapter_of, uploads, bells.changed)

    @app.post(
        "/v1/work/{work_id}/report",
        tags=TAGS,
        response_model=Receipt,
        responses=gives(Receipt(True)) | refusals(401, 403, 404, 408, 413, 422, 429, 507),
        openapi_extra=takes(REPORT),
    )
    async def report(
        request: Request,
        key: Key,
        device: Known,
        work_id: str,
        life: Life = "",
        wait_s: float = 0.0,
    ) -> Response:
        """Tell what a piece of work gave and cost, or why it failed; `wait_s` asks what is next."""
        message = decode(await read_body(request, MAX_JSON_BYTES), Report)
        if message.work_id != work_id:
            raise Refusal(422, f"the report is for work {message.work_id[:64]!r}")
        service.saw(device, service.now_s())
        receipt = await run_in_threadpool(service.answers.report, device, message, service.now_s())
        bells.changed.set()
        if wait_s > 0:
            with suppress(Refusal):  # of a device that may not work any more: it hears as it polls
                following = await awaited(key, service.device_of(key), life, wait_s)
                return brief_of(replace(receipt, next=following))
        return brief_of(receipt)

    @app.get("/healthz", tags=["watching"], response_model=Health)
    async def health() -> dict[str, str]:
        """That this process answers."""
        return {"status": "ok"}


def add_transfer_routes(
    app: FastAPI,
    device_of: Callable[..., Any],
    judge_of: Callable[[Any, str], Judge],
    adapter_of: Callable[[Any, str], Path | None],
    uploads: Uploads,
    changed: asyncio.Event,
) -> None:
    """Add them.

    Args:
        app: Gets them.
        device_of: Depends on a request; the device that sent it.
        judge_of: What decides on the update of a device for a piece of work; called in a thread.
        adapter_of: An adapter's file by its SHA-256, if this device may have it; in a thread.
        uploads: Where updates arrive.
        changed: Set when an update was taken.
    """
    Known = Annotated[Any, Depends(device_of)]

    @lru_cache(4)  # devices ask for one or two of them
    def read(path: Path) -> bytes:
        return path.read_bytes()

    @app.get(
        "/v1/adapters/{name}",
        tags=TAGS,
        response_class=FileResponse,
        responses={
            200: {"content": FILE, "description": "A safetensors file."},
            206: {"content": FILE, "description": "The part that `Range` asked for."},
            416: {"model": Detail, "description": "`Content-Range` says how long it is."},
            **refusals(400, 401, 404, 422, 429, 503),
        },
    )
    def adapter(
        device: Known, name: str, wanted: Annotated[str | None, Header(alias="Range")] = None
    ) -> Response:
        """An adapter by its SHA-256: one that this device works on, or of a run it was in."""
        path = adapter_of(device, name) if re.fullmatch("[0-9a-f]{64}", name) else None
        if path is None:
            raise Refusal(404, f"no adapter {name[:64]!r}")
        headers, size = headers_of(name), path.stat().st_size
        if (past := past_the_end(wanted, size, headers)) is not None:
            return past
        if wanted is None and size <= SMALL_BYTES:
            headers |= {"Content-Length": str(size), "Accept-Ranges": "bytes"}
            kind = "application/octet-stream"
            return StreamingResponse(_in_pieces(read(path)), headers=headers, media_type=kind)
        response = FileResponse(path, headers=headers)
        response.chunk_size = PIECE_BYTES
        return response

    @app.head(
        "/v1/work/{work_id}/update",
        tags=TAGS,
        status_code=204,
        responses={
            status: {"description": SAID[status]} for status in (401, 403, 404, 422, 429, 503, 507)
        },
    )
    async def arrived(device: Known, work_id: str, repr_digest: Digest) -> Response:
        """How much of an update has arrived, in `Upload-Offset`; or that no more is wanted."""
        judge = await run_in_threadpool(judge_of, device, work_id)
        offset = await uploads.arrived(work_id, _name(repr_digest), judge)
        told = {"Upload-Complete": "?1"} if offset is None else {"Upload-Offset": str(offset)}
        return Response(status_code=204, headers=told | {"Cache-Control": "no-store"})

    @app.put(
        "/v1/work/{work_id}/update",
        tags=TAGS,
        response_model=Receipt,
        openapi_extra={"requestBody": TENSORS},
        responses=gives(Receipt(True))
        | refusals(400, 401, 403, 404, 408, 413, 422, 429, 503, 507)
        | {409: {"model": Detail, "description": "`Upload-Offset` says which part is wanted."}},
    )
    async def update(
        request: Request,
        device: Known,
        work_id: str,
        repr_digest: Digest,
        content_range: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Send an update, or what is missing of it after a cut."""
        judge = await run_in_threadpool(judge_of, device, work_id)
        taken = await uploads.take(request, work_id, _name(repr_digest), content_range, judge)
        if isinstance(taken, int):
            detail = {"detail": f"the body goes on at byte {taken}"}
            return JSONResponse(detail, 409, {"Upload-Offset": str(taken)})
        changed.set()
        return brief_of(taken)


async def _in_pieces(body: bytes) -> AsyncIterator[memoryview]:
    for start in range(0, len(body), PIECE_BYTES):
        yield memoryview(body)[start : start + PIECE_BYTES]


def _name(header: str) -> str:
    name = digest_in(header)
    if name is None:
        raise Refusal(422, "Repr-Digest: `sha-256=:BASE64:` expected")
    return name
