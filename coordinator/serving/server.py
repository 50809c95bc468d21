"""The server process and its ASGI application: one store, one socket, graceful shutdown.

Uvicorn waits for open requests before it stops, and long polls would keep it waiting, so those are
ended first. SIGTERM and Ctrl-C end in exit code 0; a second signal ends at once. Behind a proxy
that asks `/readyz` the shutdown can be announced some seconds before.

`GET /v1/ca` gives anybody the coordinator's CA certificate: it is no secret and proves nothing. A
device compares its hash with the one its owner pasted, and then trusts this CA alone.
"""

import asyncio
import logging
import math
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from typing import Any, cast

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Response
from fastapi.concurrency import run_in_threadpool

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.device_routes import add_device_routes
from smidgen.coordinator.serving.http.connection_limits import (
    ConnectionBounds,
    ConnectionSlots,
    Door,
    Network,
    TokenBuckets,
    room_within,
)
from smidgen.coordinator.serving.http.handlers import OF_WORK, add_handlers, refusals
from smidgen.coordinator.serving.http.header_limits import UVICORNS, BoundedHttp
from smidgen.coordinator.serving.http.polls import Bells, UnderWay, heard
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.trust.checks import Secured, own_address, spare_memory
from smidgen.coordinator.trust.folder import LOOPBACK, Address
from smidgen.coordinator.upkeep.backup import watched
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.pins import CA_PATH

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
    app.add_middleware(UnderWay, bells=bells, prefixes=("/v1/enrol", *OF_WORK))
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


MOST_FILES = 65_536
LOOK_S = 1.0  # between two looks at the certificate's files
NONE_CANCELLED = "Cancel %s running task(s), timeout graceful shutdown exceeded", (0,)
KEPT_OPEN_S = 75  # a connection without a request: longer than a device works or pauses between two


class PortError(WrongInput):
    """The address cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        PortError: The port is taken, or the host is not this machine.
    """
    bound = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only where the protocol is named; without, an answer takes 40 ms.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(512)
        return bound
    except (OSError, OverflowError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        raise PortError(
            f"cannot listen on port {port} of {host} ({error}); choose another with --port"
        ) from error


def url_of(bound: socket.socket, secured: Secured | None = None) -> str:
    """Where a socket is reached; of all addresses, the one that devices were told."""
    host, port = bound.getsockname()[:2]
    if secured is not None:
        told = secured.trust.address.host
        return Address(told if host in ("0.0.0.0", "::") else host, port).url
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable(bound: socket.socket, secured: Secured | None = None) -> list[str]:
    """What a device on the network is given, where all addresses are listened on."""
    host, port = bound.getsockname()[:2]
    if secured is not None:
        return [f"devices: --coordinator {url_of(bound, secured)} --ca {secured.ca}"]
    if host == "0.0.0.0" and (found := own_address()):
        return [f"devices on this network: --coordinator http://{found}:{port} --plain-http"]
    if host in LOOPBACK:
        return [f"devices on this machine: --coordinator {url_of(bound)}"]
    return []


@contextmanager
def sole_server(store: Store) -> Iterator[None]:
    """Hold the store for this process alone, without what killed processes left half written.

    A shared one is held together with others.

    Raises:
        StoreError: Another process serves it, or it is not as it was left.
    """
    if store.place.is_shared:
        with store.serving_together():
            yield
        return
    with store.serving_alone(), watched(store):
        store.check_here()
        with store.removing() as is_held:
            if is_held:  # else `create` is writing now, and the next start sweeps
                store.blobs.sweep()
        yield


def serve(
    service: Service,
    bound: socket.socket,
    on_listening: Callable[[], None],
    stop: threading.Event,
    exit_when_finished: bool = False,
    secured: Secured | None = None,
    parts: Sequence[Part] = (),
    trusted: Sequence[Network] = (),
    room: ConnectionBounds | None = None,
    drain_s: float = 0.0,
    tick_s: float = TICK_S,
) -> None:
    """Serve until a signal, `stop`, or the end of all runs.

    Args:
        service: What is served.
        bound: The socket; closed at the end.
        on_listening: Called once connections are accepted.
        stop: Ends it from another thread.
        exit_when_finished: End when all runs are finished and the devices have heard of it.
        secured: TLS; None: plain HTTP.
        parts: What is served beside the devices' routes.
        trusted: Proxies that say whom they ask for.
        room: How many connections there may be; by default as many as fit into the open files.
        drain_s: How long it serves on after a signal, while it says that it is not ready.
        tick_s: The longest between two looks at deadlines and new runs.
    """
    files = allow_files()
    guests = ConnectionSlots(room or room_within(files), trusted)
    # Asked each time: `init --renew --ca` may give another authority.
    app = create_app(service, lambda: secured.trust.authority if secured else None, parts, tick_s)
    # Clients drop mid-request all the time; cut the connection after 5 s.
    config = uvicorn.Config(
        app,
        log_config=None,  # its lines go where ours go, which has a bound
        log_level="warning",
        server_header=False,
        access_log=False,
        http=cast("Any", partial(BoundedHttp, guests=guests)),
        proxy_headers=bool(trusted),
        forwarded_allow_ips=[str(network) for network in trusted],
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEPT_OPEN_S,
        ssl_context_factory=_context_factory(secured),
    )
    server = _Server(config)
    ends_s = math.inf  # by the monotonic clock

    def end() -> None:
        nonlocal ends_s
        bells = app.state.bells
        if drain_s and not bells.is_leaving:
            bells.is_leaving, ends_s = True, time.monotonic() + drain_s
            LOG.info(
                "ends in %g s: /readyz says so, and whoever asks is served until then", drain_s
            )
            return
        server.force_exit = server.should_exit
        server.should_exit = True

    async def main() -> None:
        _on_signals(end)  # first: whoever is answered may end it
        door = Door(bound, guests)
        task = asyncio.create_task(server.serve(sockets=[door]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if not task.done():
            on_listening()
            for line in [*_standing(service), *reachable(door, secured)]:
                LOG.info("%s", line)
        looked_s = time.monotonic()
        over_s = 0.0  # when it is looked at next: a large fleet never takes a tenth of the time
        while not task.done() and not server.should_exit:
            began_s, is_over = time.monotonic(), False
            if exit_when_finished and began_s >= over_s:
                with suppress(DatabaseAway):  # who asks it for something says so
                    is_over = service.is_over(service.now_s())
                over_s = time.monotonic() + 9 * (time.monotonic() - began_s)
            is_over = is_over or time.monotonic() >= ends_s
            server.should_exit = stop.is_set() or is_over or server.should_exit
            guests.look()
            if secured is not None and time.monotonic() - looked_s >= LOOK_S:
                looked_s = time.monotonic()
                secured.look(datetime.now(timezone.utc))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(task), 0.05)
        app.state.bells.stop()
        service.limit.end()
        guests.end()
        await task

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(is_told)
    asyncio.run(main())


class _Server(uvicorn.Server):
    """It leaves signals to `serve`; uvicorn's own raise them again as it ends: exit code -15."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _standing(service: Service) -> list[str]:
    """Where every run stands; of a database that does not answer that."""
    try:
        return service.lines()
    except DatabaseAway as error:
        return [str(error)]


def is_told(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's is worth reading: not of a stop that cut no request short.

    It waits for connections, too: a device at work does not hear that its idle one is closed. Nor
    of what is not HTTP, which `BoundedHttp` tells with its address. Nor how what was cut short
    ended: how many were cut is a line of its own.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_cut = isinstance(error, asyncio.CancelledError)
    is_cut = is_cut or record.getMessage().rstrip().endswith("asyncio.exceptions.CancelledError")
    is_idle = (record.msg, record.args) == NONE_CANCELLED
    return not (is_cut or is_idle or record.msg == UVICORNS)


def allow_files(most: int = MOST_FILES) -> int:
    """Let this process open more files where it may: each device that waits holds one.

    Shells and systemd set the soft limit to 1,024 for the sake of `select`, which is not used here.

    Returns:
        How many it may open now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return most if soft == resource.RLIM_INFINITY else soft


def _context_factory(secured: Secured | None) -> Callable[..., ssl.SSLContext] | None:
    if secured is None:
        return None
    spare_memory()
    return lambda *_: secured.context


def _on_signals(end: Callable[[], None]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
