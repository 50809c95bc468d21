"""Virtual devices on a Ray cluster: an engine on each processor, clients dealt to them in turn.

The same work gives the same bytes wherever it is done, and answers come back in the order asked,
so a run on a cluster equals one in this process. A cluster's machines need smidgen installed and
the base at the same place; texts travel once.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.util import ActorPool

from edge_client.state import Finished
from edge_client.wire import Work
from simulation.devices import InProcess
from simulation.federation import SimulationError, Standing
from simulation.scoring import Score
from simulation.stage import Stage

LOCAL = "local"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class _Worker:
    """One engine on the cluster."""

    def __init__(self, on: Stage) -> None:
        self._devices = InProcess(on)

    def train(self, adapter: bytes, name: str, work: Work) -> Finished:
        """One client's work."""
        return next(self._devices.train(adapter, [(name, work)]))

    def judge(self, adapter: bytes) -> Score:
        """An adapter's score."""
        return self._devices.judge(adapter)

    def start(self) -> Standing:
        """The adapter before the first round."""
        return self._devices.start()


class RayDevices:
    """See `simulation.federation.Devices`.

    Args:
        on: Base, texts and clients.
        address: Of a cluster, or `local` for one on this machine that ends with this process.

    Raises:
        SimulationError: There is no such cluster, or its workers cannot open the base.
    """

    def __init__(self, on: Stage, address: str) -> None:
        _join(address)
        threads = on.experiment.threads
        count = int(ray.cluster_resources().get("CPU", 0)) // threads
        if not count:
            raise SimulationError(f"--ray {address}: no worker has {threads} processors")
        worker: Any = ray.remote(num_cpus=threads)(_Worker)
        shared = ray.put(on)
        self._workers = [worker.remote(shared) for _ in range(count)]
        self._pool = ActorPool(self._workers)

    def start(self) -> Standing:
        """The adapter before the first round."""
        return Standing(bytes(_got(self._workers[0].start.remote()).adapter))

    def train(self, adapter: bytes, asked: Sequence[tuple[str, Work]]) -> Iterator[Finished]:
        """Answer training work, in the order asked; a client that fails says so in its report."""
        body = ray.put(adapter)
        try:
            yield from self._pool.map(lambda one, work: one.train.remote(body, *work), asked)
        except ray.exceptions.RayError as error:
            raise _failed(error) from error

    def judge(self, adapter: bytes) -> Score:
        """Score an adapter on all test texts."""
        scored: Score = _got(self._workers[0].judge.remote(adapter))
        return scored

    def close(self) -> None:
        """Free the engines; the cluster stays."""
        for worker in self._workers:
            ray.kill(worker)


def _join(address: str) -> None:
    if ray.is_initialized():
        return
    os.environ.update(QUIET)
    mine = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **mine)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise SimulationError(
            f"--ray {address}: no cluster there ({reason}); start one with `ray start --head`, or "
            f"use --ray {LOCAL}"
        ) from error


def _got(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _failed(error) from error


def _failed(error: Exception) -> SimulationError:
    cause = getattr(error, "cause", None) or error
    return SimulationError(f"a Ray worker failed: {type(cause).__name__}: {cause}")
