"""The machines of a story: a process each, which dies and starts again on what lies on its disk.

A process counts what it does with files, sockets and sleeps; it dies at the operation that a fault
names. At that instant its folder is copied; whatever the dying code still does (`finally`, SQLite's
checkpoint at the last close) is lost with the old one, as with `kill -9`.
"""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from uvicorn.server import ServerState

from smidgen.coordinator.serving.http.header_limits import BoundedHttp
from smidgen.coordinator.serving.server import create_app, sole_server
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import check_needed
from smidgen.coordinator.upkeep.retention import DiskLimits
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.runs.own import MISSED
from smidgen.edge_client.client.settings import Settings, Summary
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.updates.masks import Ring, ring_in
from smidgen.edge_client.updates.secure_sum import SEALS
from smidgen.edge_client.wire.fleet import REVOKED
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import Update, decode_update
from tests.coordinator.secure.draws import whole_requests
from tests.stories.clock import Blocking, chance, now, put, unseen
from tests.stories.disk import Disk
from tests.stories.faults import Fault
from tests.stories.lies import LIAR, LIES
from tests.stories.network import Link, Stream

TICK_S = 10.0  # of virtual time; each costs real time
BUSY_S = 0.01  # the longest that a piece of work waits for its thread
MOST_LIVES = 60  # of a process, before its owner gives up
MOST_OPS = 2_000_000  # of one process: with more a story goes round in circles
FREE = shutil.disk_usage("/")._replace(free=1 << 40)


class Killed(BaseException):
    """This process has died here."""


class Machine:
    """What has a name, a folder, and faults to come.

    Args:
        name: What people call it.
        folder: Its disk.
        loop: The scheduler.
        faults: Of this machine, in any order.
        met: Counts those that happened, by kind.

    Attributes:
        ops: Operations of its processes so far.
        requests: Requests so far.
        answers: Pieces of work done so far.
        is_dying: Whether its process is dead and not started again yet.
        down_s: For how long.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        loop: asyncio.AbstractEventLoop,
        faults: Sequence[Fault],
        met: Counter[str],
    ) -> None:
        self.name, self.folder, self.loop, self.met = name, folder, loop, met
        self.ops = self.requests = self.answers = 0
        self.is_dying, self.down_s, self.skew_s = False, 0.0, 0.0
        self.disk = Disk(folder, any(one.kind == "power" for one in faults))
        self._of_op = {one.at: one for one in faults if one.is_of_op}
        self._of_request = {one.at: one for one in faults if one.is_of_request}
        self._of_answer = {one.at: one for one in faults if one.kind in LIES}

    def op(self, what: str) -> None:
        """One operation.

        Raises:
            Killed: The last one.
        """
        if self.is_dying:
            raise Killed
        self.ops += 1
        assert self.ops < MOST_OPS, f"{self.name} goes round in circles"
        if (fault := self._of_op.pop(self.ops, None)) is not None:
            self.meet(fault)

    def meet(self, fault: Fault) -> None:
        """Something happens at this operation.

        Raises:
            Killed: The process dies of it.
        """
        self.met[fault.kind] += 1
        if fault.kind in ("full", "read-only"):
            self.disk.lack = fault.kind  # type: ignore[assignment]
            self.loop.call_later(fault.seconds, setattr, self.disk, "lack", "")
        elif fault.kind == "clock":
            self.skew_s += fault.seconds
        elif fault.kind == "pause":
            self.halt(fault.seconds)
        else:
            self.die(fault.kind, fault.seconds)
            raise Killed

    def halt(self, seconds: float) -> None:
        """Stand still, as a process that was stopped; here with everybody else."""
        now.monotonic_s += seconds

    def die(self, kind: str, down_s: float) -> None:
        with unseen():
            shutil.copytree(self.folder, self._copy, symlinks=True)
            if kind == "power":
                self.disk.lose(self._copy)
            if kind == "flip":
                self.disk.flip(self._copy)
        self.is_dying, self.down_s = True, down_s

    @property
    def _copy(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.left")

    def swap(self) -> None:
        """Once the dead process is cleared away: its disk as it was at that instant."""
        with unseen():
            shutil.rmtree(self.folder)
            self._copy.rename(self.folder)
        self.is_dying = False


class Device(Machine):
    """A device: the real client, started again whenever it ends before its run.

    Args:
        settings: What the client is started with.
        host: The coordinator's machine.
        on_end: Called when it is done.

    Attributes:
        summary: Of its last life, once it is done.
        said: Why its last life ended, where that was an error; in one line.
        receipts: SHA-256 of each update that the coordinator said counts, by work.
        masked: What has left it under a mask, each with its secret of then.
        rings: Of secure aggregations that it was handed, by SHA-256.
        has_joined: Whether the run has taken it in; who comes after its end waits for another.
        lives: How often it was started.
    """

    def __init__(
        self, settings: Settings, host: "Host", on_end: Callable[[], None], *known: Any
    ) -> None:
        super().__init__(*known)
        self._settings, self.host, self._on_end = settings, host, on_end
        # What a client ends with in good order; one that lies may stumble over its lies.
        self._ends = (Exception,) if self.name == LIAR else (Failed, WrongInput, OSError)
        self.summary: Summary | None = None
        self.said, self.lives = "", 0
        self.receipts: dict[str, str] = {}
        self.masked = list[tuple[bytes, Update]]()
        self.rings: dict[str, Ring] = {}
        self.run_id = ""
        self.has_joined = False
        self._waits_for: Stream | None = None
        self._code: Blocking | None = None
        self._is_over = False

    def start(self) -> None:
        self.lives += 1
        self._code = Blocking(self.loop, self._live, {"process": self})

    def _live(self) -> None:
        pause_s = again_s(self.lives)
        try:
            state = ClientState(self.folder)
            with state.locked():
                self.summary = Client(self._settings, state).run()
            if not self.is_dying and self.summary.adapter:  # else it is there for the next life
                self._on_end()
                return
        except Killed:
            pass
        except self._ends as error:
            self.said = f"{type(error).__name__}: {error}"
        if self._is_over:
            return
        if self.is_revoked or self.has_missed_it:
            self._on_end()
            return
        self._code = None
        if self.is_dying:
            pause_s = self.down_s
            self.swap()
        if self.lives < MOST_LIVES:
            self.loop.call_later(pause_s, self.start)
        else:
            self._on_end()

    @property
    def is_down(self) -> bool:
        """Whether it waits to be started again."""
        return self._code is None

    @property
    def is_revoked(self) -> bool:
        """Whether it has heard that it is; it stays away then."""
        return self.said.endswith(REVOKED)

    @property
    def has_missed_it(self) -> bool:
        """Whether it has heard that the run ended while it was away."""
        return self.said.endswith(MISSED)

    def end(self) -> None:
        """The story is over."""
        if self._code is not None:
            self.is_dying = self._is_over = True
            self._code.throw(Killed())

    # What the network asks

    def sent(self, request: bytes) -> None:
        """Note what leaves the device under a mask, with the secret that it has then."""
        for body in whole_requests([request]):
            with suppress(WireError), unseen():
                update = decode_update(body)
                if SEALS in (update.coded or {}) and (self.folder / "noise.key").is_file():
                    secret = ClientState(self.folder).secret(self.run_id)
                    self.masked.append((secret, update))

    def fault_of_request(self) -> Fault | None:
        self.requests += 1
        return self._met(self._of_request.pop(self.requests, None))

    def fault_of_answer(self) -> Fault | None:
        self.answers += 1
        return self._met(self._of_answer.pop(self.answers, None))

    def _met(self, fault: Fault | None) -> Fault | None:
        self.met.update([fault.kind] if fault else [])
        return fault

    def park(self, stream: Stream, seconds: float | None) -> bool:
        self._waits_for = stream
        try:
            return self._code is not None and self._code.park(seconds)
        finally:
            self._waits_for = None

    def wake(self, stream: Stream) -> None:
        if self._waits_for is stream and self._code is not None:
            self._waits_for = None
            self._code.wake()

    def sleep(self, seconds: float) -> None:
        self.op("sleeps")
        self.halt(seconds)

    def halt(self, seconds: float) -> None:
        if self._code is not None:
            self._code.park(seconds)
        if self.is_dying:
            raise Killed

    def received(self, stream: Stream) -> None:
        """Note each receipt that has arrived whole: from then on its update must never be lost."""
        request, answer = stream.request, bytes(stream.answer)
        if request.startswith(b"GET /v1/adapters/"):
            with suppress(WireError):
                name = request[len(b"GET /v1/adapters/") :].partition(b" ")[0].decode()
                self.rings[name] = ring_in(answer.partition(b"\r\n\r\n")[2])
        if request.startswith(b"POST /v1/runs/"):
            self.run_id = request.split(b"/")[3].decode()
        if b'{"accepted":true' not in answer:
            return
        if request.startswith(b"PUT /v1/work/"):
            head = request.partition(b"\r\n\r\n")[0].decode("latin-1")
            lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
            self.receipts[head.split("/")[3]] = lines["repr-digest"]
        if request.startswith(b"POST /v1/runs/") and b'"state":"joined"' in request:
            self.has_joined = True


class Host(Machine):
    """The coordinator's machine: service, application and HTTP protocol, all of them real.

    Args:
        on_start: Called with each service before it serves.

    Attributes:
        service: Of its process, while that serves.
        links: Connections that are open.
        said: Why its last process ended, where that was an error.
    """

    def __init__(self, on_start: Callable[[Service], None], *known: Any) -> None:
        super().__init__(*known)
        self._on_start = on_start
        self.service: Service | None = None
        self.links: dict[Link, None] = {}
        self.said, self.lives = "", 0
        self._protocol: Callable[[], BoundedHttp] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._above: asyncio.Task[Any] | None = None

    def accept(self) -> BoundedHttp | None:
        return None if self._protocol is None or self.is_dying else self._protocol()

    def die(self, kind: str, down_s: float) -> None:
        super().die(kind, down_s)
        for link in list(self.links):
            link.cut()
        if self._task is not None:
            self.loop.call_soon(self._task.cancel)

    async def run(self, above: asyncio.Task[Any]) -> None:
        """Serve, die, serve again, until this is cancelled.

        Args:
            above: The one task that is not of the coordinator.
        """
        self._above = above
        while True:
            self.lives += 1
            self._task = asyncio.create_task(self._live())
            try:
                await asyncio.wait({self._task})
            finally:
                self._protocol = self.service = None
                await self._clear()
            if self.is_dying:
                self.swap()
            await asyncio.sleep(self.down_s)

    def _usage(self, _: Path) -> Any:
        return FREE._replace(free=0) if self.disk.lack == "full" else FREE

    async def _clear(self) -> None:
        """Let nothing of a dead process run on."""
        mine = asyncio.current_task(), self._above
        while others := [task for task in asyncio.all_tasks() if task not in mine]:
            for task in sorted(others, key=_place_of):
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _live(self) -> None:
        try:
            with closing(Store(self.folder, is_new=False)) as store, sole_server(store):
                limits = DiskLimits()
                self.service = Service(store, _unix_s(), limits, usage=self._usage)
                for live in self.service.runs():
                    if not live.state.is_finished:
                        check_needed(store, live.config.name, live.state)
                with unseen():
                    self._on_start(self.service)
                app = create_app(self.service, tick_s=TICK_S)
                async with app.router.lifespan_context(app):
                    http: Any = BoundedHttp
                    config = uvicorn.Config(app, http=http, lifespan="off", log_config=None)
                    config.load()
                    self._protocol = partial(BoundedHttp, config, ServerState(), {})
                    await asyncio.Event().wait()
        except Killed:
            pass
        except (Failed, WrongInput, OSError) as error:
            self.said = f"{type(error).__name__}: {error}"
            self.down_s = again_s(self.lives)


def _place_of(task: asyncio.Task[Any]) -> str:
    """When a task began, among all; groups of tasks give names of their own."""
    return task.get_name().rpartition("-")[2].zfill(12)


def again_s(lives: int) -> float:
    """After how long a supervisor starts a process again that has ended with an error."""
    return min(5.0 * 1.1**lives, 60.0)


def _unix_s() -> float:
    return time.time()


def installed() -> None:
    """Let what threads of this interpreter do be done at once and whole, after others have run."""
    threaded = anyio.to_thread.run_sync

    async def run_sync(work: Callable[..., Any], *args: Any, **given: Any) -> Any:
        if not now.is_virtual:
            return await threaded(work, *args, **given)
        await asyncio.sleep(chance.uniform(0.0, BUSY_S))
        return work(*args)

    put(anyio.to_thread, run_sync=run_sync)
