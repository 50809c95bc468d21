"""The peer `flwr`: a task without compute in Flower's own simulation, in its own environment.

Its virtual clients add 0.01 to the adapter they get and send it back; FedAvg takes the mean. They
run in Ray actors, one per processor. `flwr run` ends in the same runtime as the call here, after a
SuperLink, a SuperExec and an installation of the app; those would only add to its time.

    python -m benchmarks.comparisons.flwr_child '{"clients": 1000, "rounds": 3, ...}'
"""

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from smidgen.profiling.instruments.stepping import tell

ADDED = 0.01
ONE_A_PROCESSOR = 1e-9  # a share so small that the least number of clients is taken


def train(message: Message, context: Context) -> Message:
    received = message.content["arrays"].items()
    arrays = ArrayRecord({name: Array(array.numpy() + ADDED) for name, array in received})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def count(replies: Sequence[RecordDict], _weighted_by: str) -> MetricRecord:
    return MetricRecord({"clients": len(replies)})


class Server:
    """What the simulated server does: a first small round that starts all, then those that count.

    Args:
        clients: Virtual clients, all in every round.
        rounds: Rounds that count.
        adapter: File of arrays, `.npz`.
        processors: Clients that run at a time.
    """

    def __init__(self, clients: int, rounds: int, adapter: str, processors: int) -> None:
        self._clients, self._rounds, self._processors = clients, rounds, processors
        with np.load(adapter) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self._clock = time.perf_counter()

    def main(self, grid: Grid, _context: Context) -> None:
        """Take the rounds and tell the parent of each."""
        arrays = ArrayRecord({name: Array(array) for name, array in self._arrays.items()})
        few = min(self._processors, self._clients)
        self._strategy(ONE_A_PROCESSOR, few).start(grid, arrays, num_rounds=1)
        tell("ready", elapsed_s=time.perf_counter() - self._clock)
        strategy = self._strategy(1.0, self._clients)
        done = strategy.start(grid, arrays, num_rounds=self._rounds, evaluate_fn=self._stamp)
        answered = [done.train_metrics_clientapp[index + 1] for index in range(self._rounds)]
        tell(
            "done",
            clients=[int(metrics["clients"]) for metrics in answered],
            added=[self._added(name, array) for name, array in done.arrays.items()],
            versions=versions(),
        )

    def _strategy(self, share: float, least: int) -> FedAvg:
        return FedAvg(
            fraction_train=share,
            fraction_evaluate=0.0,
            min_train_nodes=least,
            min_available_nodes=self._clients,
            train_metrics_aggr_fn=count,
        )

    def _stamp(self, index: int, _arrays: ArrayRecord) -> None:
        """Note the time: called before the first round and after each."""
        now = time.perf_counter()
        if index:
            tell("round", index=index, elapsed_s=now - self._clock)
        self._clock = time.perf_counter()

    def _added(self, name: str, array: Array) -> float:
        return float(np.mean(array.numpy() - self._arrays[name]))


def simulate(request: dict[str, Any]) -> None:
    """Run the simulation; Ray's processes end with it."""
    processors = int(request["processors"])
    tell("started", pid=os.getpid())
    names = ("clients", "rounds", "adapter", "processors")
    client, server = ClientApp(), ServerApp()
    client.train()(train)
    server.main()(Server(**{name: request[name] for name in names}).main)
    ray = {
        "address": "local",
        "num_cpus": processors,
        "log_to_driver": False,
        "_temp_dir": request["folder"],
    }
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    settings = {"init_args": ray, "client_resources": resources}
    run_simulation(server, client, int(request["clients"]), backend_config=settings)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    return found | {name: metadata.version(name) for name in ("flwr", "ray", "numpy")}


if __name__ == "__main__":
    simulate(json.loads(sys.argv[1]))
