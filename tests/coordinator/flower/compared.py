"""Run in flwr's environment: its strategies behind our protocols, beside ours; prints JSON."""

import json
from collections.abc import Callable

import numpy as np

from smidgen.coordinator.flower.strategies import FlowerMean, FlowerOptimizer
from smidgen.coordinator.rounds.learning.memory import Memory
from smidgen.coordinator.rounds.learning.optimizers import ServerRates
from smidgen.coordinator.rounds.learning.registry import mean_of, optimizer_of
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

MEANS = {"FedAvg": "fedavg", "FedMedian": "median", "FedTrimmedAvg:beta=0.2": "trimmed:0.2"}
OPTIMIZERS = {
    "FedAvgM:server_momentum=0.9": ("fedavgm", ServerRates(lr=1.0, beta_1=0.9)),
    "FedYogi:eta=0.1": ("fedyogi", ServerRates(lr=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)),
    "FedAdagrad:eta=0.1": ("fedadagrad", ServerRates(lr=0.1, beta_1=0.0, tau=1e-3)),
}
DRAW = np.random.Generator(np.random.PCG64(23))


def state(scale: float) -> AdapterState:
    return {
        "a": (scale * DRAW.normal(size=(4, 8))).astype(np.float32),
        "b": (scale * DRAW.normal(size=8)).astype(np.float32),
    }


def apart(one: AdapterState, other: AdapterState) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def means() -> dict[str, float]:
    adapter = state(1.0)
    cohort = [Contribution(f"{n:02d}", state(0.1), float(5 + n)) for n in range(11)]
    return {
        name: apart(
            FlowerMean(*name.split(":")).mean(iter(cohort), adapter),
            mean_of(ours).mean(iter(cohort), adapter),
        )
        for name, ours in MEANS.items()
    }


def optimizers() -> dict[str, float]:
    found = {}
    for name, (ours, rates) in OPTIMIZERS.items():
        own = optimizer_of(ours, rates)
        adapters, memories = [state(1.0)] * 2, [Memory(), Memory()]
        for index in range(1, 6):
            mean, steps = state(0.1), (own, FlowerOptimizer(*name.split(":")))
            for side, one in enumerate(steps):  # made anew in each round, as a run does
                adapters[side], memories[side] = one.step(
                    adapters[side], mean, memories[side], index, 5
                )
        found[name] = apart(*adapters)
    return found


def refused(make: Callable[[], object]) -> str:
    try:
        make()
    except WrongInput as error:
        return str(error)
    return ""


if __name__ == "__main__":
    told = {
        "means": means(),
        "optimizers": optimizers(),
        "unknown": refused(lambda: FlowerMean("FedXgbCyclic")),
        "setting": refused(lambda: FlowerMean("Krum", "num_malicious=2")),
        "value": refused(lambda: FlowerOptimizer("FedAdam", "eta=abc")),
    }
    print(json.dumps(told))
