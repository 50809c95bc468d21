"""Serving a store: until a signal, for the command; in a thread, for a notebook or a test.

with serve("store", port=0) as server:
    run_client(server.url, ...)
"""

import atexit
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.api.create import NewRun, RunStatus, add_run, runs
from coordinator.api.stores import AtStore, Place, open_store
from coordinator.config import RunConfig, read_run_config
from coordinator.plugins import know_folder, know_installed, lack_of
from coordinator.serving.limit import LIMIT_S, LONGEST_S
from coordinator.storage.place import StorePlace, place_of
from coordinator.storage.runs import config_of
from coordinator.storage.store import Store, StoreError
from coordinator.upkeep.limits import KEEP_ROUNDS, LEAST_FREE, limits_of, note
from coordinator.upkeep.watch import check_needed, unsecured
from edge_client.errors import Failed, demand
from edge_client.files import close_to_others, told_of

if TYPE_CHECKING:
    from coordinator.serving.app import Part
    from coordinator.serving.service import Service
    from coordinator.trust.folder import Address
    from coordinator.trust.secured import Secured

HOST, PORT = "127.0.0.1", 8700
LONGEST_DRAIN_S = 3600
LOG = logging.getLogger(__name__)

# Told that connections are taken; ends it; whether it ends when all runs are finished.
Serve = Callable[[Callable[[], None], threading.Event, bool], None]


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
    store: AtStore,
    host: str | None,
    port: int | None,
    run: RunConfig | Place | None = None,
    plain_http: bool = False,
    keep_rounds: int = KEEP_ROUNDS,
    least_free: str = LEAST_FREE,
    trusted_proxies: Sequence[str] = (),
    serve_packs: bool = False,
    minimum_client: str = "",
    plugins: Place | None = None,
    plugin_limit_s: float = LIMIT_S,
    bound: socket.socket | None = None,
    drain_s: float = 0.0,
) -> Iterator[Ready]:
    """Open a store and a socket, and create the run of a run file unless its name is there.

    Raises:
        StoreError: There is no store and no run to make one for, another process serves it, or it
            is damaged.
        PortError: The address cannot be listened on.
        TrustError: Devices would refuse the certificates, or plain HTTP for other machines.
    """
    from coordinator.fleet.versions import check_minimum
    from coordinator.serving.log.clocks import check_clock
    from coordinator.serving.packs import Packs
    from coordinator.serving.server import listen, serve, sole_server, url_of
    from coordinator.serving.service import Service
    from coordinator.trust.network import proxy_of

    place = place_of(store)
    folder = place.folder
    limits = limits_of(keep_rounds, least_free)
    check_minimum(minimum_client)
    demand(
        0 <= plugin_limit_s <= LONGEST_S,
        f"--plugin-limit {plugin_limit_s:g}: 0, for none, to {LONGEST_S:g} seconds are expected",
    )
    demand(
        0 <= drain_s <= LONGEST_DRAIN_S,
        f"--drain {drain_s:g}: 0, for none, to {LONGEST_DRAIN_S} seconds are expected",
    )
    know_installed()
    if plugins is not None:
        know_folder(Path(plugins))
    trusted = [proxy_of("--trusted-proxy", text) for text in trusted_proxies]
    tls = _secured(folder, plain_http)
    config = read_run_config(Path(run), {}) if isinstance(run, str | Path) else run
    with (
        closing(_opened(place, config is None)) as opened,
        bound or listen(*_address(folder, tls, host, port, plain_http)) as bound,
        sole_server(opened),
    ):
        check_clock(opened.database)
        _check_secured(opened, plain_http, tls)
        _close(folder)
        created = None if config is None else _created_if_new(opened, config)
        note(folder, limits)
        opened.note_keep_rounds(limits.keep_rounds)
        service = Service(
            *(opened, time.time(), limits),
            minimum_client=minimum_client,
            packs=Packs(serve_packs),
            plugin_limit_s=plugin_limit_s,
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
                drain_s=drain_s,
            ),
        )


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
    place: StorePlace,
    host: str | None,
    port: int | None,
    run: RunConfig | Place | None,
    plain_http: bool,
) -> Iterator[tuple[socket.socket, str, NewRun | None]]:
    """A socket for several processes, its URL, and the run of a run file that was not there yet.

    Raises:
        WrongInput: As `ready` does.
    """
    from coordinator.serving.server import listen, url_of

    tls = _secured(place.folder, plain_http)
    config = read_run_config(Path(run), {}) if isinstance(run, str | Path) else run
    with closing(_opened(place, config is None)) as opened:
        created = None if config is None else _created_if_new(opened, config)
    with listen(*_address(place.folder, tls, host, port, plain_http)) as bound:
        yield bound, url_of(bound, tls), created


def _address(
    folder: Path, tls: "Secured | None", host: str | None, port: int | None, plain_http: bool
) -> tuple[str, int]:
    told = None if tls is None else tls.trust.address
    host = _host(told) if host is None else host
    _check_plain(folder, host, is_plain=tls is None and not plain_http)
    return host, (PORT if told is None else told.port) if port is None else port


def parts() -> "tuple[Part, ...]":
    """What is served beside devices."""
    from coordinator.operator.routes import add_operator_routes  # FastAPI: seconds
    from coordinator.page.routes import add_page
    from coordinator.page.watching import add_watching

    return add_operator_routes, add_watching, add_page


def _secured(folder: Path, plain_http: bool) -> "Secured | None":
    if plain_http:
        return None
    from coordinator.trust.secured import secured

    return secured(folder, datetime.now(timezone.utc))


def _host(told: "Address | None") -> str:
    """What is listened on if nobody says: loopback, unless devices were told another address."""
    from coordinator.trust.network import names_loopback

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
    from coordinator.trust.network import is_loopback

    demand(
        not is_plain or is_loopback(host),
        f"--host {host} would serve other machines without TLS: `smidgen coordinator init --store "
        f"{folder}` makes certificates; --plain-http serves without them",
    )


def _check_secured(store: Store, plain_http: bool, tls: "Secured | None") -> None:
    """Refuse to serve in plain HTTP what had certificates, unless somebody asked for it.

    Raises:
        StoreError: Says what to do.
    """
    if tls is not None:
        store.secure(True)
    elif not plain_http and (lacks := unsecured(store)):
        raise StoreError(
            f"store {store.folder}: {lacks[0]}; restore it from a backup, or make another CA with "
            f"`smidgen coordinator init --store {store.folder}`; --plain-http serves without TLS"
        )


def _opened(place: StorePlace, is_there: bool) -> Store:
    """The store, brought up to date if an older smidgen wrote it."""
    return open_store(place, is_upgrading=True) if is_there else Store(place, is_upgrading=True)


def _close(folder: Path) -> None:
    """Take a store from all but its owner, whoever made its files and when."""
    closed, left = close_to_others(folder)
    if closed:
        LOG.info("%s", told_of(closed))
    if left:
        LOG.warning("others may read %s, which is not ours to close; its owner can chmod", left[0])


def _created_if_new(store: Store, config: RunConfig) -> NewRun | None:
    is_there = config.name in {config_of(run).name for run in store.runs()}
    return None if is_there else add_run(store, config)


class Server:
    """A coordinator that serves a store in a thread of its own; `serve` makes it.

    A `with` block ends it; so does `stop`, and the end of the process.

    Attributes:
        url: What devices are given as their coordinator.
        ca: What devices are given to believe it by; empty over plain HTTP.
        created: The run that `serve` made, if it made one.
    """

    def __init__(self, opened: ExitStack, prepared: Ready, is_ending: bool) -> None:
        self.url, self.ca, self.created = prepared.url, prepared.ca, prepared.created
        self._place, self._opened = prepared.place, opened
        self._stop, self._listening = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []  # of the thread, at most one
        self._thread = threading.Thread(
            target=self._run, args=(prepared.serve, is_ending), name="coordinator", daemon=True
        )
        self._thread.start()
        atexit.register(self.stop)
        self._listening.wait()
        if self._errors:
            self.stop()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server at {self.url}, {'serving' if self.is_running else 'stopped'}>"

    @property
    def is_running(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def runs(self) -> list[RunStatus]:
        """Where every run stands, the oldest first."""
        return runs(self._place)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended, as it does by itself with `exit_when_finished`.

        Returns:
            Whether it has.

        Raises:
            Failed: It broke.
        """
        self._thread.join(timeout_s)
        if self.is_running:
            return False
        self._close()
        return True

    def stop(self) -> None:
        """End it, and wait until it has ended; more than once is as good as once.

        Raises:
            Failed: It broke.
        """
        self._stop.set()
        self._thread.join()
        self._close()

    def _run(self, serve: Serve, is_ending: bool) -> None:
        try:
            serve(self._listening.set, self._stop, is_ending)
        except BaseException as error:  # told in the thread that waits for it
            self._errors.append(error)
        finally:
            self._listening.set()

    def _close(self) -> None:
        atexit.unregister(self.stop)
        self._opened.close()
        if self._errors:
            error = self._errors.pop()
            raise Failed(f"the coordinator at {self.url} broke: {error}") from error


def serve(
    store: AtStore,
    *,
    host: str | None = None,
    port: int | None = None,
    run: RunConfig | Place | None = None,
    exit_when_finished: bool = False,
    plain_http: bool = False,
    keep_rounds: int = KEEP_ROUNDS,
    least_free: str = LEAST_FREE,
    trusted_proxies: Sequence[str] = (),
    serve_packs: bool = False,
    minimum_client: str = "",
    plugins: Place | None = None,
    plugin_limit: float = LIMIT_S,
    database: str = "",
    blobs: str = "",
) -> Server:
    """Serve all runs of a store in a thread; connections are taken when this returns.

        with smidgen.serve("store", port=0) as server:
            print(server.url)

    Args:
        store: Folder of a store that `create_run` made; with `run` it may be new.
        host: Address to listen on; by default loopback, and with certificates every network.
        port: TCP port; 0 takes a free one. By default that of `init`, or 8700.
        run: A `RunConfig` or run file; its run is created first, unless its name is there.
        exit_when_finished: End when all runs are finished and their devices know.
        plain_http: Serve without TLS, also to other machines.
        keep_rounds: Newest rounds of a run whose adapter is kept. The first, the best and the
            last one stay anyway.
        least_free: Free space of the disk, such as `512M`, below which no step opens and no update
            is taken; `0` for none.
        trusted_proxies: Addresses or networks of proxies whose `X-Forwarded-For` says who asks.
        serve_packs: Give the packs that runs train on to devices that fetch them.
        minimum_client: The oldest client that gets work, such as `0.2.0`; by default any.
        plugins: Folder of Python files with means, optimizers and selections that runs may name.
        plugin_limit: Seconds that a call of one of them may take; 0: any time.
        database: URL of a PostgreSQL database that machines share; by default SQLite's file.
        blobs: Where adapters and updates lie, as `s3://BUCKET/PREFIX`; by default in the folder.

    Raises:
        WrongInput: No store, one that is served already, an address that is taken, or
            certificates that devices would refuse.
    """
    with ExitStack() as stack:
        told = (plain_http, keep_rounds, least_free, trusted_proxies, serve_packs, minimum_client)
        place = place_of(store, database, blobs)
        prepared = stack.enter_context(ready(place, host, port, run, *told, plugins, plugin_limit))
        return Server(stack.pop_all(), prepared, exit_when_finished)
