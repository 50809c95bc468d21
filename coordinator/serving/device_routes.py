"""The routes of `edge_client.wire.messages`: what devices ask.

Bytes are checked by `wire` and `admission`, not by the web framework: a request from outside ends
in an answer, or in 4xx with one line of detail. Store work runs in threads, waiting does not.
"""

import re
import time
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse

from coordinator.rounds.admission import Refusal
from coordinator.serving.http import json_of, read_body, takes
from coordinator.serving.polls import Bells, heard
from coordinator.serving.service import Service
from coordinator.storage.keys import bearer
from coordinator.storage.store import Device
from edge_client.wire.messages import (
    MAX_JSON_BYTES,
    Asking,
    Enrol,
    Enrolled,
    Receipt,
    Report,
    Terms,
    Waiting,
    Work,
    decode,
)
from edge_client.wire.tensors import MAX_UPDATE_OVERHEAD_BYTES, digest_header

LONGEST_POLL_S = 60.0
PIECE_BYTES = 1 << 20  # of an adapter that is sent: every piece is a hop to a thread and back


def add_device_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    def device_of(authorization: Annotated[str | None, Header()] = None) -> Device:
        return service.device_of(bearer(authorization))

    Known = Annotated[Device, Depends(device_of)]

    @app.post("/v1/terms", response_model=Terms, openapi_extra=takes(Asking))
    async def terms(request: Request) -> Response:
        message = decode(await read_body(request, MAX_JSON_BYTES), Asking)
        return json_of(await run_in_threadpool(service.terms, message))

    @app.post("/v1/enrol", response_model=Enrolled, openapi_extra=takes(Enrol))
    async def enrol(request: Request) -> Response:
        message = decode(await read_body(request, MAX_JSON_BYTES), Enrol)
        enrolled = await run_in_threadpool(service.enrol, message, time.time())
        return json_of(enrolled)

    @app.get("/v1/work", response_model=Work, responses={202: {"model": Waiting}, 410: {}})
    async def next_work(device: Known, wait_s: float = 0.0, have: str = "") -> Response:
        wait_s = min(wait_s, LONGEST_POLL_S) if wait_s > 0 else 0.0
        with bells.bell(device) as bell:
            given = await run_in_threadpool(service.next_work, device, time.time(), have)
            bells.changed.set()  # a device that is new may be the one a round waits for
            if given is None and wait_s and not bells.is_stopping:
                await heard(bell, wait_s)
                given = await run_in_threadpool(service.next_work, device, time.time(), have)
        if given is None:
            return json_of(await run_in_threadpool(service.waiting, device, time.time()), 202)
        return json_of(given, 200 if isinstance(given, Work) else 410)

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
        content_digest: Annotated[str | None, Header()] = None,
    ) -> Response:
        asked = await run_in_threadpool(service.asked, device, work_id)
        limit = service.adapter_bytes(asked.opened.adapter_sha256) + MAX_UPDATE_OVERHEAD_BYTES
        body = await read_body(request, limit)
        receipt = await run_in_threadpool(
            service.accept_update, device, work_id, body, content_digest, time.time()
        )
        bells.changed.set()
        return json_of(receipt)

    @app.post("/v1/work/{work_id}/report", response_model=Receipt, openapi_extra=takes(Report))
    async def report(request: Request, device: Known, work_id: str) -> Response:
        message = decode(await read_body(request, MAX_JSON_BYTES), Report)
        if message.work_id != work_id:
            raise Refusal(422, f"the report is for work {message.work_id[:64]!r}")
        receipt = await run_in_threadpool(service.accept_report, device, message, time.time())
        bells.changed.set()
        return json_of(receipt)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/runs/{run_id}")
    def run(run_id: str) -> dict[str, Any]:
        live = service.run(run_id)
        step = live.state.step
        return {
            "name": live.config.name,
            "phase": live.state.phase,
            "round_index": step.opened.round_index if step else live.state.round_index,
            "rounds": live.config.rounds,
            "devices": len(service.alive(run_id, time.time())),
        }
