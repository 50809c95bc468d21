"""Run in flwr's environment, as a script: its strategies on numbers that a file brings.

    python strategies.py in.npz out.npz

In: `start`, `(rounds, devices, numbers)` deltas as `deltas`, and `examples` of each device. Out: by
strategy, the model after each round, `(rounds, numbers)`. A device answers with the model that it
got plus its delta of the round.
"""

import sys
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy

MADE = {
    "fedavg": lambda: strategy.FedAvg(),
    "fedavgm": lambda: strategy.FedAvgM(server_learning_rate=0.7, server_momentum=0.9),
    "fedadagrad": lambda: strategy.FedAdagrad(eta=0.1, tau=1e-3),
    "fedadam": lambda: strategy.FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "fedyogi": lambda: strategy.FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "trimmed:0.2": lambda: strategy.FedTrimmedAvg(beta=0.2),
    "median": lambda: strategy.FedMedian(),
    "krum:2": lambda: strategy.Krum(num_malicious_nodes=2),
    "multikrum:2:4": lambda: strategy.MultiKrum(num_malicious_nodes=2, num_nodes_to_select=4),
}


class Reply:
    """As much of a `Message` as strategies look at; a real one needs a run of flwr's."""

    def __init__(self, content: RecordDict) -> None:
        self.content = content

    def has_error(self) -> bool:
        return False


def record(model: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"a": Array(model)})


def rounds(name: str, given: "np.lib.npyio.NpzFile") -> np.ndarray:
    chosen, model, found = MADE[name](), given["start"], []
    for number, deltas in enumerate(given["deltas"], 1):
        # As `configure_train` sets it, which asks a grid of nodes for nothing else here.
        if name == "fedavgm" and chosen.current_arrays is None:
            chosen.current_arrays = record(model)
        elif name in ("fedadagrad", "fedadam", "fedyogi"):
            chosen.current_arrays = {"a": model}
        replies = []
        for delta, examples in zip(deltas, given["examples"], strict=True):
            metrics = MetricRecord({"num-examples": int(examples)})
            content = RecordDict({"arrays": record(model + delta), "metrics": metrics})
            replies.append(Reply(content))
        arrays, _ = chosen.aggregate_train(number, replies)
        model = arrays["a"].numpy()
        found.append(model)
    return np.array(found)


if __name__ == "__main__":
    with np.load(sys.argv[1]) as brought:
        found: dict[str, Any] = {name: rounds(name, brought) for name in MADE}
    np.savez(sys.argv[2], **found)
