"""The coordinator's ASGI application, and the task that drives its rounds.

`GET /v1/ca` gives anybody the coordinator's CA certificate: it is no secret and proves nothing. A
device compares its hash with the one its owner pasted, and then trusts this CA alone.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool

from coordinator.rounds.admission import Refusal
from coordinator.serving.device_routes import add_device_routes
from coordinator.serving.http.documented import refusals
from coordinator.serving.http.handlers import add_handlers
from coordinator.serving.http.polls import Bells, UnderWay, heard
from coordinator.serving.http.rate_limit import TokenBuckets
from coordinator.serving.service import Service
from edge_client.wire.pins import CA_PATH

MEDIA_TYPE = "application/pem-certificate-chain"


def add_ca_route(app: FastAPI, authority: Callable[[], bytes | None]) -> None:
    """Let an application show its authority.

    Args:
        app: The coordinator's.
        authority: Gives its certificate of now, PEM; None: devices trust those of their system,
            or plain HTTP.
    """

    @app.get(
        CA_PATH,
        tags=["watching"],
        response_class=Response,
        responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}, **refusals(404)},
    )
    async def authority_certificate() -> Response:
        """The certificate (PEM) of the authority that devices believe."""
        shown = authority()
        if shown is None:
            raise Refusal(404, "this coordinator has no authority of its own")
        return Response(shown, media_type=MEDIA_TYPE)


TICK_S = 1.0
REST = 9.0  # after a tick without news, times as long as it took
THREADS = 8  # for what touches the disk, which takes one write at a time
ATTEMPTS, ATTEMPTS_PER_S = 500, 1.0  # of an address with a key or token that lets nobody in
# Paths of what they ask.
OF_DEVICES = ("/v1/enrol", "/v1/work", "/v1/runs/", "/v1/adapters/", "/v1/packs/")
Part = Callable[[FastAPI, Service, Bells], None]  # adds routes of a room above this one
LOG = logging.getLogger(__name__)


def create_app(
    service: Service,
    authority: Callable[[], bytes | None] = lambda: None,
    parts: Sequence[Part] = (),
    tick_s: float = TICK_S,
) -> FastAPI:
    """The coordinator as an ASGI application.

    Args:
        service: What is served.
        authority: Gives the certificate (PEM) of the authority that devices believe now, if
            there is one.
        parts: Add what people are served beside devices: the operator's API, the page.
        tick_s: The longest between two ticks.
    """
    bells = Bells()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        current_default_thread_limiter().total_tokens = THREADS
        loop = asyncio.get_running_loop()

        def heard_news() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(bells.changed.set)

        service.lead.begin(heard_news)
        tasks = [asyncio.create_task(run) for run in (drive(service, bells, tick_s), bells.call())]
        yield
        bells.stop()
        await asyncio.gather(*tasks)

    app = FastAPI(title="smidgen coordinator", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.bells = bells
    app.state.service = service
    app.add_middleware(UnderWay, bells=bells, prefixes=OF_DEVICES)
    add_handlers(app, TokenBuckets(ATTEMPTS, ATTEMPTS_PER_S))
    add_device_routes(app, service, bells)
    add_ca_route(app, authority)
    for add in parts:
        add(app, service, bells)
    return app


async def drive(service: Service, bells: Bells, tick_s: float) -> None:
    """Tick when something changed, and every `tick_s` for deadlines and new runs."""
    said = ""
    while not bells.is_stopping:
        bells.changed.clear()
        began_s, woken = time.monotonic(), set[str]()
        try:
            woken = await run_in_threadpool(service.tick, service.now_s())
            bells.ring(woken)
            bells.ticked_s = time.monotonic()
            said = ""
        except Exception as error:  # the edge: a full disk must not end the driver
            if str(error) != said:  # once: a line a second would fill that disk for good
                LOG.exception("rounds stand still; trying again each second")
            said = str(error)
        if not bells.is_stopping:
            if not woken:  # nothing was due: many answers are few looks
                await asyncio.sleep(min(REST * (time.monotonic() - began_s), tick_s / 2))
            await heard(bells.changed, tick_s)
    with suppress(Exception):  # the same edge: it costs a coordinator that stops nothing
        await run_in_threadpool(service.stop, service.now_s())
