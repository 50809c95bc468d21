"""A coordinator in a thread, for a notebook or a test.

with serve("store", port=0) as server:
    run_client(server.url, ...)
"""

import atexit
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from coordinator.api.create import RunStatus, runs
from coordinator.api.ready import Endpoint, Ready, Serve, Serving, ready
from coordinator.api.stores import AtStore, Place
from coordinator.config import RunConfig
from coordinator.serving.limit import LIMIT_S
from coordinator.storage.place import place_of
from coordinator.upkeep.disk_space import KEEP_ROUNDS, LEAST_FREE
from edge_client.errors import Failed


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
    endpoint = Endpoint(host, port, plain_http)
    told = (keep_rounds, least_free, trusted_proxies, serve_packs, minimum_client)
    serving = Serving(*told, plugins, plugin_limit)
    with ExitStack() as stack:
        place = place_of(store, database, blobs)
        prepared = stack.enter_context(ready(place, endpoint, run, serving))
        return Server(stack.pop_all(), prepared, exit_when_finished)
