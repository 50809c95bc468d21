"""What machines ask a coordinator: is it there, can it work, and what does it count.

GET /readyz    one word: `ready`, or with 503 what it lacks: `driver`, `store`, `disk`; `stopping`
GET /metrics   Prometheus's text, for a viewer's bearer token
"""

import time
from collections import Counter
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from coordinator.operator.asking import BEARER, CARRIED, role_of
from coordinator.rounds.admission import Refusal
from coordinator.serving.http.documented import refusals
from coordinator.serving.http.polls import Bells
from coordinator.serving.service import Service
from coordinator.watch.metrics import CONTENT_TYPE, Counted, Metrics, Standing

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
    """What a coordinator lacks to do its work, in one word; empty where it lacks nothing."""
    silent_s = time.monotonic() - bells.ticked_s
    if bells.is_stopping or silent_s > SLOWEST_TICK_S:
        return "driver"
    if not (service.store.database.answers() and service.store.blobs.is_writable()):
        return "store"
    return "disk" if service.caretaker.is_full else ""


def standing_of(service: Service, now_s: float) -> Standing:
    """Where a coordinator stands, from its memory."""
    lives = service.runs()
    devices = [one for one in service.fleet.all() if one.revoked_at_s is None]
    steps = [live.state.step for live in lives if live.state.step is not None]
    return Standing(
        phases=Counter(live.state.phase for live in lives),
        rounds=sum(live.state.round_index for live in lives),
        devices=len(devices),
        here=sum(service.presence.is_here(one.device_id, now_s) for one in devices),
        asked=sum(len(step.members) - len(step.answers) for step in steps),
        answers=service.answers.by_outcome(),
    )
