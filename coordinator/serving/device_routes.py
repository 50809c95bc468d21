"""The routes of `edge_client.wire.messages`: what devices ask.

Bytes are checked by `wire` and `admission`, not by the web framework: a request from outside ends
in an answer, or in 4xx with one line of detail. Store work runs in threads, waiting does not.
"""

import re
import time
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from coordinator.rounds.admission import Refusal
from coordinator.serving.http import brief_of, json_of, read_body, takes
from coordinator.serving.ledger import CLOSED
from coordinator.serving.polls import Bells, heard
from coordinator.serving.service import Service
from coordinator.storage.device_rows import Device
from coordinator.storage.keys import bearer
from edge_client.wire.fleet import Enrol, Enrolled, Membership
from edge_client.wire.messages import MAX_JSON_BYTES, Next, Receipt, Report, decode
from edge_client.wire.tensors import MAX_UPDATE_OVERHEAD_BYTES, digest_header

LONGEST_POLL_S = 60.0
PIECE_BYTES = 1 << 20  # of an adapter that is sent: every piece is a hop to a thread and back


def add_device_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    def key_of(authorization: Annotated[str | None, Header()] = None) -> str | None:
        return bearer(authorization)

    Key = Annotated[str | None, Depends(key_of)]

    def device_of(key: Key) -> Device:
        return service.device_of(key)

    Known = Annotated[Device, Depends(device_of)]

    @app.post("/v1/enrol", response_model=Enrolled, openapi_extra=takes(Enrol))
    async def enrol(request: Request, key: Key) -> Response:
        message = decode(await read_body(request, MAX_JSON_BYTES), Enrol)
        enrolled = await run_in_threadpool(service.enrol, message, key, time.time())
        bells.changed.set()
        return json_of(enrolled)

    @app.get("/v1/work", response_model=Next)
    async def work(key: Key, device: Known, wait_s: float = 0.0) -> Response:
        wait_s = min(wait_s, LONGEST_POLL_S) if wait_s > 0 else 0.0
        with bells.bell(device.device_id) as bell:
            given = await next_of(device)
            if given.waiting and wait_s and not bells.is_stopping:
                await heard(bell, wait_s)
                given = await next_of(service.device_of(key))  # it may be revoked by now
        return brief_of(given)

    async def next_of(device: Device) -> Next:
        if service.saw(device, time.time()):
            bells.changed.set()  # it may be the one that a round waits for
        return await run_in_threadpool(service.next, device, time.time())

    @app.post(
        "/v1/runs/{run_id}/membership", response_model=Receipt, openapi_extra=takes(Membership)
    )
    async def membership(request: Request, device: Known, run_id: str) -> Response:
        told = decode(await read_body(request, MAX_JSON_BYTES), Membership)
        receipt = await run_in_threadpool(service.membership, device, run_id, told, time.time())
        bells.changed.set()
        return json_of(receipt)

    @app.get("/v1/adapters/{name}", response_class=FileResponse)
    def adapter(request: Request, device: Known, name: str) -> Response:
        if not re.fullmatch("[0-9a-f]{64}", name) or not service.is_adapter(name):
            raise Refusal(404, f"no adapter {name[:64]!r}")
        digest = digest_header(name)
        headers = {"ETag": f'"{name}"', "Repr-Digest": digest, "Cache-Control": "immutable"}
        if "range" not in request.headers:
            headers["Content-Digest"] = digest
        response = FileResponse(service.adapter_path(name), headers=headers)
        response.chunk_size = PIECE_BYTES
        return response

    @app.put("/v1/work/{work_id}/update", response_model=Receipt)
    async def update(
        request: Request,
        device: Known,
        work_id: str,
        repr_digest: Annotated[str | None, Header()] = None,
        content_digest: Annotated[str | None, Header()] = None,
    ) -> Response:
        service.saw(device, time.time())
        asked = service.answers.asked(device, work_id)
        if asked is None:
            return json_of(CLOSED)
        limit = service.adapter_bytes(asked.opened.adapter_sha256) + MAX_UPDATE_OVERHEAD_BYTES
        body = await read_body(request, limit)
        receipt = await run_in_threadpool(
            service.answers.update, device, work_id, body, repr_digest or content_digest
        )
        bells.changed.set()
        return json_of(receipt)

    @app.post("/v1/work/{work_id}/report", response_model=Receipt, openapi_extra=takes(Report))
    async def report(request: Request, device: Known, work_id: str) -> Response:
        message = decode(await read_body(request, MAX_JSON_BYTES), Report)
        if message.work_id != work_id:
            raise Refusal(422, f"the report is for work {message.work_id[:64]!r}")
        service.saw(device, time.time())
        receipt = await run_in_threadpool(service.answers.report, device, message, time.time())
        bells.changed.set()
        return json_of(receipt)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}
