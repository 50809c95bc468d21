"""Server optimizers and robust means beside flwr's strategies, run in flwr's own environment.

Conventions compared, flwr 1.42: rounds count from 1; what is remembered starts from zero, tau lies
outside the root, the mean is weighted by examples. Ours sees deltas where flwr sees models.
FedAdam of flwr multiplies eta by sqrt(1 - beta_2^(r + 1)) / (1 - beta_1^(r + 1)) in round r, one
step more than Kingma and Ba's correction: ours is compared without correction, at that rate. Its
MultiKrum weighs the chosen by examples, ours does not: there all hold equally many.
"""

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.rounds.learning.memory import Memory
from smidgen.coordinator.rounds.learning.registry import mean_of, optimizer_of
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.profiling.peers import flwr

ROUNDS, DEVICES, NUMBERS = 5, 11, 60
EVEN = ("multikrum:2:4",)  # compared with equal numbers of examples
LEARNING = {
    "fedavg": Learning(),
    "fedavgm": Learning(optimizer="fedavgm", lr=0.7, momentum=0.9),
    "fedadagrad": Learning(optimizer="fedadagrad", lr=0.1, beta_1=0.0, tau=1e-3),
    "fedadam": Learning(optimizer="fedadam", lr=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "fedyogi": Learning(optimizer="fedyogi", lr=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
    "trimmed:0.2": Learning(mean="trimmed:0.2"),
    "median": Learning(mean="median"),
    "krum:2": Learning(mean="krum:2"),
    "multikrum:2:4": Learning(mean="multikrum:2:4"),
}


def draws() -> dict[str, np.ndarray]:
    draw = np.random.Generator(np.random.PCG64(19))
    deltas = 0.05 + 0.1 * draw.normal(size=(ROUNDS, DEVICES, NUMBERS))
    deltas[:, -2:] *= 50.0  # two that are far off
    start = draw.normal(size=NUMBERS)
    return {
        "start": start.astype(np.float32).astype(np.float64),
        "deltas": deltas.astype(np.float32).astype(np.float64),
        "examples": draw.integers(1, 40, DEVICES),
    }


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    if reason := flwr.missing():
        pytest.skip(f"flwr: {reason}")
    found: dict[str, np.ndarray] = {}
    for is_even in (False, True):
        folder = tmp_path_factory.mktemp("flwr")
        given = draws()
        if is_even:
            given["examples"] = np.ones(DEVICES, np.int64)
        np.savez(folder / "in.npz", **given)  # type: ignore[arg-type]
        script = Path(__file__).with_name("strategies.py")
        line = [flwr.environment() / "bin" / "python", script, folder / "in.npz"]
        subprocess.run([*line, folder / "out.npz"], check=True, timeout=300, env=flwr.QUIET)
        with np.load(folder / "out.npz") as told:
            found |= {name: told[name] for name in told.files if (name in EVEN) == is_even}
    return found


def ours(name: str) -> np.ndarray:
    given, learning = draws(), LEARNING[name]
    adapter: AdapterState = {"a": given["start"].astype(np.float32)}
    memory: Memory = {}
    after = []
    for number, deltas in enumerate(given["deltas"], 1):
        cohort = [
            Contribution(f"{row:02d}", {"a": delta.astype(np.float32)}, float(examples))
            for row, (delta, examples) in enumerate(zip(deltas, given["examples"], strict=True))
        ]
        rates = learning.rates
        if name == "fedadam":
            shares = [1.0 - beta ** (number + 1) for beta in (rates.beta_2, rates.beta_1)]
            rates = replace(rates, lr=rates.lr * math.sqrt(shares[0]) / shares[1])
        mean = mean_of(learning.mean).mean(cohort, adapter)
        optimizer = optimizer_of(learning.optimizer, rates)
        adapter, memory = optimizer.step(adapter, mean, memory, number, ROUNDS)
        after.append(adapter["a"].astype(np.float64))
    return np.array(after)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_the_models_are_flwr_s_after_each_round(theirs: dict[str, np.ndarray], name: str) -> None:
    # Ours keeps float32 between rounds, theirs float64 here.
    np.testing.assert_allclose(ours(name), theirs[name], rtol=1e-6, atol=1e-6)
    assert np.abs(theirs[name][0] - draws()["start"]).max() > 1e-3  # something was learned
