"""A store made ready to be served: held, checked, its socket bound, the run of a run file created.

with ready(place, Serving(port=0), run) as prepared:
    prepared.serve(...)
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from smidgen.coordinator.api.create import NewRun, add_run
from smidgen.coordinator.api.stores import Place, new_store, open_store
from smidgen.coordinator.config import RunConfig, read_run_config
from smidgen.coordinator.plugins import LIMIT_S, LONGEST_S, know_folder, know_installed, lack_of
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.runs import config_of
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import check_needed, unsecured
from smidgen.coordinator.upkeep.retention import KEEP_ROUNDS, LEAST_FREE, limits_of, note
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import close_aloud

if TYPE_CHECKING:
    from smidgen.coordinator.serving.server import Part
    from smidgen.coordinator.serving.service import Service
    from smidgen.coordinator.trust.checks import Secured
    from smidgen.coordinator.trust.folder import Address

HOST, PORT = "127.0.0.1", 8700
LOG = logging.getLogger(__name__)

# Told that connections are taken; ends it; whether it ends when all runs are finished.
Serve = Callable[[Callable[[], None], threading.Event, bool], None]


@dataclass(frozen=True)
class Serving:
    """Where and how a store is served.

    Attributes:
        host: Address; None: loopback, and with certificates every network.
        port: TCP port; 0 takes a free one; None: that of `init`, or 8700.
        plain_http: Serve without TLS, also to other machines.
        keep_rounds: Newest rounds of a run whose adapter is kept.
        least_free: Free space of the disk, as people type it, below which nothing more is taken.
        trusted_proxies: Proxies whose `X-Forwarded-For` says who asks.
        serve_packs: Whether packs that runs train on are given to devices that fetch them.
        minimum_client: The oldest client that gets work; empty for any.
        plugins: Folder of extensions that runs may name.
        plugin_limit: Seconds that a call of one of them may take; 0 for any time.
        drain: Seconds for which it serves on after it was told to end.
    """

    host: str | None = None
    port: int | None = None
    plain_http: bool = False
    keep_rounds: int = KEEP_ROUNDS
    least_free: str = LEAST_FREE
    trusted_proxies: Sequence[str] = ()
    serve_packs: bool = False
    minimum_client: str = ""
    plugins: Place | None = None
    plugin_limit: float = LIMIT_S
    drain: float = 0.0


@dataclass(frozen=True)
class Ready:
    """A store that can be served: held by this process alone, its socket bound.

    Attributes:
        place: The store's.
        store: The store.
        url: Where it will be served.
        ca: What devices are given as --ca; empty over plain HTTP.
        created: The run of a run file that was not there yet.
        serve: Serves it until a signal, an event, or the end of all runs.
    """

    place: StorePlace
    store: Store
    url: str
    ca: str
    created: NewRun | None
    serve: Serve


@contextmanager
def ready(
    place: StorePlace,
    serving: Serving,
    run: RunConfig | Place | None = None,
    bound: socket.socket | None = None,
) -> Iterator[Ready]:
    """Open a store and a socket, and create the run of a run file unless its name is there.

    Raises:
        StoreError: There is no store and no run to make one for, another process serves it, or it
            is damaged.
        PortError: The address cannot be listened on.
        TrustError: Devices would refuse the certificates, or plain HTTP for other machines.
    """
    from smidgen.coordinator.fleet.devices import check_minimum
    from smidgen.coordinator.serving.log import check_clock
    from smidgen.coordinator.serving.packs import Packs
    from smidgen.coordinator.serving.server import listen, serve, sole_server, url_of
    from smidgen.coordinator.serving.service import Service
    from smidgen.coordinator.trust.checks import proxy_of

    folder = place.folder
    limits = limits_of(serving.keep_rounds, serving.least_free)
    check_minimum(serving.minimum_client)
    _check_seconds("--plugin-limit", serving.plugin_limit, LONGEST_S)
    _check_seconds("--drain", serving.drain, 3600)
    know_installed()
    if serving.plugins is not None:
        know_folder(Path(serving.plugins))
    trusted = [proxy_of("--trusted-proxy", text) for text in serving.trusted_proxies]
    tls = _secured(folder, serving)
    config = read_run_config(Path(run), {}) if isinstance(run, str | Path) else run
    with (
        closing(_opened(place, config is None)) as opened,
        bound or listen(*_address(folder, tls, serving)) as bound,
        sole_server(opened),
    ):
        check_clock(opened.database)
        _check_secured(opened, serving, tls)
        close_aloud(folder, LOG)  # whoever made its files and when
        created = None if config is None else _created_if_new(opened, config)
        note(folder, limits)
        opened.marks.note_keep_rounds(limits.keep_rounds)
        service = Service(
            *(opened, time.time(), limits),
            minimum_client=serving.minimum_client,
            packs=Packs(serving.serve_packs),
            plugin_limit_s=serving.plugin_limit,
        )
        service.clock.note(folder)
        for live in service.runs():
            if not live.state.is_finished:
                _check_next(service, live.run.run_id)
                if lack := lack_of(live.config.learning):
                    LOG.warning("run %s will pause: %s", live.config.name, lack)
        yield Ready(
            place,
            opened,
            url_of(bound, tls),
            "" if tls is None else tls.ca,
            created,
            partial(
                serve,
                service,
                bound,
                secured=tls,
                parts=parts(),
                trusted=trusted,
                drain_s=serving.drain,
            ),
        )


def _check_seconds(option: str, seconds: float, longest_s: float) -> None:
    expected = f"0, for none, to {longest_s:g} seconds are expected"
    demand(0 <= seconds <= longest_s, f"{option} {seconds:g}: {expected}")


def _check_next(service: "Service", run_id: str) -> None:
    """Refuse a run that cannot go on; one that others have carried on meanwhile is read on first.

    Raises:
        StoreError: A blob that it needs is missing or damaged.
    """
    while True:
        live = service.run(run_id)
        try:
            return check_needed(service.store, live.config.name, live.state)
        except StoreError:
            service.neighbours.catch_up()
            if service.run(run_id) is live:
                raise


@contextmanager
def listening(
    place: StorePlace, serving: Serving, run: RunConfig | Place | None
) -> Iterator[tuple[socket.socket, str, NewRun | None]]:
    """A socket for several processes, its URL, and the run of a run file that was not there yet.

    Raises:
        WrongInput: As `ready` does.
    """
    from smidgen.coordinator.serving.server import listen, url_of

    tls = _secured(place.folder, serving)
    config = read_run_config(Path(run), {}) if isinstance(run, str | Path) else run
    with closing(_opened(place, config is None)) as opened:
        created = None if config is None else _created_if_new(opened, config)
    with listen(*_address(place.folder, tls, serving)) as bound:
        yield bound, url_of(bound, tls), created


def _address(folder: Path, tls: "Secured | None", serving: Serving) -> tuple[str, int]:
    told = None if tls is None else tls.trust.address
    host = _host(told) if serving.host is None else serving.host
    _check_plain(folder, host, is_plain=tls is None and not serving.plain_http)
    port = PORT if told is None else told.port
    return host, port if serving.port is None else serving.port


def parts() -> "tuple[Part, ...]":
    """What is served beside devices."""
    from smidgen.coordinator.operator.routes import add_operator_routes  # FastAPI: seconds
    from smidgen.coordinator.page.routes import add_page, add_watching

    return add_operator_routes, add_watching, add_page


def _secured(folder: Path, serving: Serving) -> "Secured | None":
    if serving.plain_http:
        return None
    from smidgen.coordinator.trust.checks import secured

    return secured(folder, datetime.now(timezone.utc))


def _host(told: "Address | None") -> str:
    """What is listened on if nobody says: loopback, unless devices were told another address."""
    from smidgen.coordinator.trust.checks import names_loopback

    if told is None:
        return HOST
    if names_loopback(told.host):
        return told.host
    return "::" if ":" in told.host else "0.0.0.0"


def _check_plain(folder: Path, host: str, is_plain: bool) -> None:
    """Refuse to speak plain HTTP to other machines, unless somebody asked for it.

    Raises:
        WrongInput: Says what to do.
    """
    from smidgen.coordinator.trust.checks import is_loopback

    demand(
        not is_plain or is_loopback(host),
        f"--host {host} would serve other machines without TLS: `smidgen coordinator init --store "
        f"{folder}` makes certificates; --plain-http serves without them",
    )


def _check_secured(store: Store, serving: Serving, tls: "Secured | None") -> None:
    """Refuse to serve in plain HTTP what had certificates, unless somebody asked for it.

    Raises:
        StoreError: Says what to do.
    """
    if tls is not None:
        store.marks.secure(True)
    elif not serving.plain_http and (lacks := unsecured(store)):
        raise StoreError(
            f"store {store.folder}: {lacks[0]}; restore it from a backup, or make another CA with "
            f"`smidgen coordinator init --store {store.folder}`; --plain-http serves without TLS"
        )


def _opened(place: StorePlace, is_there: bool) -> Store:
    """The store, made where there is none."""
    return open_store(place, may_pair=True) if is_there else new_store(place)


def _created_if_new(store: Store, config: RunConfig) -> NewRun | None:
    is_there = config.name in {config_of(run).name for run in store.runs()}
    return None if is_there else add_run(store, config)
