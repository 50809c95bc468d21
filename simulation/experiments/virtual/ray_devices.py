"""Virtual devices on a Ray cluster: one engine per processor, clients assigned in turn.

The same work gives the same bytes wherever it is done, and answers come back in the order asked,
so a run on a cluster equals one in this process. A cluster's machines need smidgen installed and
the base at the same path; texts are sent once.
"""

import atexit
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.planning.resources import usable_cores
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.simulation.experiments.federation.devices import NOTHING, SimulationError, Standing
from smidgen.simulation.experiments.scoring import Score
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.virtual.in_process import InProcess

LOCAL = "local"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
Asked = TypeVar("Asked")
Done = TypeVar("Done")


class _Worker:
    """One engine on the cluster."""

    def __init__(self, on: Stage) -> None:
        self._devices = InProcess(on)

    def do(
        self,
        adapter: bytes,
        name: str,
        work: Work,
        book: LabelJournal | None,
        known: StepInputs | None,
    ) -> tuple[FinishedWork, LabelJournal | None]:
        """One client's work, and what it knows of its unlabelled texts after it."""
        self._devices.books = {} if book is None else {name: book}
        inputs = {} if known is None else {name: known}
        finished = next(self._devices.do(adapter, [(name, work)], inputs))
        return finished, self._devices.books.get(name)

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        return self._devices.gate(adapter, work)

    def judge(self, adapter: bytes, arm: str, work: Work | None) -> Score:
        return self._devices.judge(adapter, arm, work)

    def check(self, adapter: bytes, arm: str) -> Score | None:
        return self._devices.check(adapter, arm)

    def start(self) -> Standing:
        return self._devices.start()


class RayDevices:
    """See `smidgen.simulation.experiments.federation.Devices`.

    Args:
        on: Base, texts and clients.
        address: A cluster's, or `local` for one on this machine that ends with this process.

    Raises:
        SimulationError: There is no such cluster, or its workers cannot open the base.
    """

    def __init__(self, on: Stage, address: str) -> None:
        self._ray = ray = _joined(address)
        threads = on.experiment.threads
        count = int(ray.cluster_resources().get("CPU", 0)) // threads
        if not count:
            raise SimulationError(f"--ray {address}: no worker has {threads} processors")
        worker: Any = ray.remote(num_cpus=threads)(_Worker)
        shared = ray.put(on)
        self._workers = [worker.remote(shared) for _ in range(count)]
        self.books: dict[str, LabelJournal] = {}
        self._pool = ray.util.ActorPool(self._workers)

    def start(self) -> Standing:
        standing: Standing = self._got(self._workers[0].start.remote())
        return standing

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        """Answer training or label work, in the order asked; who fails says so in its report."""
        body, names = self._ray.put(adapter), [name for name, _ in asked]
        known = [(name, work, self.books.get(name), inputs.get(name)) for name, work in asked]
        try:
            answers = self._pool.map(lambda one, work: one.do.remote(body, *work), known)
            for name, (finished, book) in zip(names, answers, strict=True):
                if book is not None:
                    self.books[name] = book
                yield finished
        except self._ray.exceptions.RayError as error:
            raise _failed(error) from error

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        report: Report | None = self._got(self._workers[0].gate.remote(adapter, work))
        return report

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        scored: Score = self._got(self._workers[0].judge.remote(adapter, arm, work))
        return scored

    def check(self, adapter: bytes, arm: str) -> Score | None:
        scored: Score | None = self._got(self._workers[0].check.remote(adapter, arm))
        return scored

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)

    def _got(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise _failed(error) from error


def each(
    address: str, work: Callable[[Stage, Asked], Done], on: Stage, asked: Sequence[Asked]
) -> Iterator[Done]:
    """What a function gives for each, in the order asked; on a cluster's processors.

    Args:
        address: A cluster's, or `local`.
        work: The function; a module's, so that it can travel.
        on: Base, texts and clients, which travel once.
        asked: What is asked besides.

    Raises:
        SimulationError: There is no such cluster, or a worker failed.
    """
    ray = _joined(address)
    remote: Any = ray.remote(num_cpus=on.experiment.threads)(work)
    shared = ray.put(on)
    waiting = [remote.remote(shared, one) for one in asked]
    try:
        for one in waiting:
            yield ray.get(one)
    except ray.exceptions.RayError as error:
        raise _failed(error) from error
    finally:
        for one in waiting:
            ray.cancel(one, force=True)


def _joined(address: str) -> Any:
    """Ray, as a part of that cluster; nothing of it is left behind when this process ends."""
    known = sys.modules.get("ray")
    if known is not None and known.is_initialized():
        return known
    if address not in (LOCAL, "auto"):
        _probe(address)
    how: dict[str, Any] = {"address": address}
    if address == LOCAL:
        how |= _of_my_own()
    os.environ.update(QUIET)
    import ray  # reads the environment

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**how, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody(address, str(error).splitlines()[0]) from error
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray puts its own there
    return ray


def _of_my_own() -> dict[str, Any]:
    """What a cluster on this machine is started with.

    Without a token in the environment Ray would write one into the user's home; its ports listen
    on every interface.
    """
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    folder = tempfile.mkdtemp(prefix="smidgen-ray-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after Ray's own, made later
    return {
        "num_cpus": usable_cores(),
        "include_dashboard": False,
        # About the least that Ray takes; one adapter per round is all that lies there
        "object_store_memory": 80 << 20,
        "_temp_dir": folder,
    }


def _probe(address: str) -> None:
    """Ask whether anybody listens: Ray itself would ask for ten minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _nobody(address, str(error)) from error


def _nobody(address: str, reason: str) -> SimulationError:
    return SimulationError(
        f"--ray {address}: no cluster there ({reason}); HOST:PORT of one that `ray start --head` "
        f"made is expected, or `{LOCAL}`"
    )


def _failed(error: Exception) -> SimulationError:
    cause = getattr(error, "cause", None) or error
    return SimulationError(f"a Ray worker failed: {type(cause).__name__}: {cause}")
