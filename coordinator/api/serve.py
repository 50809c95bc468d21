"""A coordinator in a thread, for a notebook or a test; several processes on one address.

    with serve("store", port=0) as server:
        run_client(server.url, ...)

With several processes the parent holds the socket and serves nothing. Each child is the same
command again and accepts from that socket, so a killed one leaves waiting connections to the others
and is restarted.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType

from smidgen.coordinator.api.create import RunStatus, runs
from smidgen.coordinator.api.ready import Ready, Serve, Serving, ready
from smidgen.coordinator.api.stores import AtStore, Place
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.plugins import LIMIT_S
from smidgen.coordinator.storage.database import StorePlace, place_of
from smidgen.coordinator.upkeep.retention import KEEP_ROUNDS, LEAST_FREE
from smidgen.edge_client.errors import Failed, demand

SOCKET = "SMIDGEN_WORKER_SOCKET"  # tells a child the number of the parent's socket
MOST = 64
AGAIN_S = 1.0  # before a process that has ended is started again
LOOK_S = 0.1


@dataclass
class Worker:
    """A process that serves, and what it has said.

    Attributes:
        process: The process.
        listening: Set by its first line, which says that it listens.
        said: All lines after that.
        was_well: Whether one in its place has listened before.
    """

    process: "subprocess.Popen[str]"
    was_well: bool = False
    listening: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        """Read all that it says: a pipe that nobody empties would stop it."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            if next(lines, ""):
                self.listening.set()
            self.said += lines

    @property
    def is_well(self) -> bool:
        return self.was_well or self.listening.is_set()

    def last_words(self) -> str:
        self._reading.join()
        return "".join(self.said)


def check_workers(place: StorePlace, count: int) -> None:
    """Refuse numbers that cannot be.

    Raises:
        WrongInput: Names the option.
    """
    demand(1 <= count <= MOST, f"--workers {count}: 1 to {MOST} processes are expected")
    demand(
        count == 1 or place.is_shared,
        f"--workers {count}: processes share a store on PostgreSQL alone; give --database too, "
        "`smidgen coordinator move` takes a store there",
    )


def inherited() -> socket.socket | None:
    """The parent's socket, in a child; None in any other process."""
    number = os.environ.get(SOCKET)
    return None if number is None else socket.socket(fileno=int(number))


def end_with_parent(stop: threading.Event) -> None:
    """Let a child end when its parent has."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent and not stop.is_set():
            time.sleep(LOOK_S)
        stop.set()

    threading.Thread(target=look, name="parent", daemon=True).start()


def serve_together(
    bound: socket.socket,
    arguments: Sequence[str],
    count: int,
    on_listening: Callable[[], None],
) -> str:
    """Serve by several processes until a signal, or until all have come to their end.

    One that ends otherwise is started again: killed, or because the database was away for a moment.

    Args:
        bound: Listens.
        arguments: Of this command.
        count: How many.
        on_listening: Called when all of them serve.

    Returns:
        What one of them said at its end.

    Raises:
        Failed: One of them could not serve, and none of all ever could.
    """
    ending = threading.Event()
    children: list[Worker] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        if ending.is_set():  # a second one: nobody waits any longer
            _terminate(children)
        ending.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        children += [_started(bound, arguments) for _ in range(count)]
        for child in children:
            _wait_for(child, ending)
        if not ending.is_set():
            on_listening()
        _look_after(children, bound, arguments, ending)
    finally:
        _terminate(children)
        for child in children:
            child.process.wait()
    return next(filter(None, (child.last_words() for child in children)), "")


def _terminate(children: Sequence[Worker]) -> None:
    for child in children:
        if child.process.returncode is None:
            child.process.terminate()


def _look_after(
    children: list[Worker],
    bound: socket.socket,
    arguments: Sequence[str],
    ending: threading.Event,
) -> None:
    """Start again who has ended before its time, until all have come to their end."""
    while not ending.is_set() and any(child.process.poll() != 0 for child in children):
        for place, child in enumerate(children):
            status = child.process.poll()
            if status in (1, 2) and not any(one.is_well for one in children):  # it said why
                raise Failed("one of the processes cannot serve; its own line says why")
            if status and not ending.wait(AGAIN_S):
                children[place] = _started(bound, arguments, child.is_well)
        ending.wait(LOOK_S)


def _started(bound: socket.socket, arguments: Sequence[str], was_well: bool = False) -> Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", "smidgen", *arguments],
        env=os.environ | {SOCKET: str(bound.fileno())},
        pass_fds=[bound.fileno()],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is the parent's to pass on, once
    )
    return Worker(process, was_well)


def _wait_for(child: Worker, ending: threading.Event) -> None:
    """Wait until it listens; or for its end, or ours."""
    while child.process.poll() is None and not ending.is_set():
        if child.listening.wait(LOOK_S):
            return


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
        store: Folder of a store that `create` made; with a run, it may be new.
        host: Address to listen on; default: loopback, or all networks if `init` named another host.
        port: TCP port, 0 for a free one; default: that of `init`, or 8700.
        run: Run file (TOML), or a `RunConfig`; the run is created first unless its name exists.
        exit_when_finished: Exit when all runs have finished and their devices know.
        plain_http: Serve without TLS: behind a proxy on this machine, or on a trusted network.
        keep_rounds: Newest adapters to keep of each run; its first, best and last are always kept.
        least_free: Free disk space, such as `512M`, below which no step starts and no update is
            accepted; 0: no limit.
        trusted_proxies: Proxy addresses or networks whose X-Forwarded-For is trusted; default:
            none.
        serve_packs: Serve the packs of runs to devices that download them (`client run --packs`);
            by default devices get them elsewhere.
        minimum_client: Oldest client version that gets work, such as 0.2.0; older ones are told
            what to install.
        plugins: Folder of Python files with means, optimizers and selections that runs may name.
        plugin_limit: Seconds that a plugin call may take before its run is paused; 0: no limit.
            Other runs wait meanwhile.
        database: URL of a PostgreSQL database shared by several machines; default: SQLite in the
            folder.
        blobs: Where adapters and updates are stored, as `s3://BUCKET/PREFIX`; default: the folder.

    Raises:
        WrongInput: No store, one that is served already, an address that is taken, or
            certificates that devices would refuse.
    """
    serving = Serving(
        host,
        port,
        plain_http,
        keep_rounds,
        least_free,
        trusted_proxies,
        serve_packs,
        minimum_client,
        plugins,
        plugin_limit,
    )
    with ExitStack() as stack:
        place = place_of(store, database, blobs)
        prepared = stack.enter_context(ready(place, serving, run))
        return Server(stack.pop_all(), prepared, exit_when_finished)
