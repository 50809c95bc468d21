"""The peer `flwr`: an app for its deployment whose clients add 0.01 to the adapter they get.

Each client adds a slightly different number: of equal tensors a server asks only the first client
for the bytes, and real clients never send equal ones.

`flwr run` takes a folder with this file to the processes that run it, in the peer's own
environment; nothing of ours is there. The server's part writes a JSON line for each round.
"""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

ADDED = 0.01
SPREAD = 5e-4  # of it, at most: less than the check of the mean lets pass


def train(message: Message, _context: Context) -> Message:
    received = message.content["arrays"].items()
    added = np.float32(ADDED * random.uniform(1 - SPREAD, 1 + SPREAD))
    arrays = ArrayRecord({name: Array(array.numpy() + added) for name, array in received})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def main(grid: Grid, context: Context) -> None:
    """Take the rounds, and say when each began and what came of them all."""
    settings = context.run_config
    clients, rounds = int(settings["clients"]), int(settings["rounds"])
    with np.load(str(settings["adapter"])) as file:
        adapter = {name: file[name] for name in file.files}
    with Path(str(settings["said"])).open("a", buffering=1) as said:

        def stamp(index: int, _arrays: ArrayRecord) -> None:
            """Called before the first round and after each."""
            said.write(json.dumps({"event": "round", "index": index, "at_s": _now_s()}) + "\n")

        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
            train_metrics_aggr_fn=_count,
        )
        arrays = ArrayRecord({name: Array(array) for name, array in adapter.items()})
        done = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=stamp)
        answered = [int(done.train_metrics_clientapp[n + 1]["clients"]) for n in range(rounds)]
        added = [float(np.mean(one.numpy() - adapter[name])) for name, one in done.arrays.items()]
        line = {"event": "done", "clients": answered, "added": added}
        said.write(json.dumps(line) + "\n")


def _now_s() -> float:
    return time.monotonic()  # the one clock of this machine


def _count(replies: Sequence[RecordDict], _weighted_by: str) -> MetricRecord:
    return MetricRecord({"clients": len(replies)})


client = ClientApp()  # flwr looks for an assignment to this name
server = ServerApp()
client.train()(train)
server.main()(main)
