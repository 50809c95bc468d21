"""Server optimizers: FedAvg's plain step, FedAvgM, FedAdagrad, FedAdam and FedYogi.

Hsu et al. 2019 (arXiv:1909.06335) and Reddi et al. 2021 (arXiv:2003.00295), Algorithm 2. The
pseudo-gradient is minus the cohort's mean delta; the code is written in deltas, so that momentum
points where the run goes. Conventions are those of flwr's strategies of the same names, which a
test compares with: moments start from zero (Reddi et al. start the squares from tau^2 or more), and
tau is outside the root.

Computed in float64 and stored as float32, 4 bytes per moment and number of the adapter. No other
bytes enter, so equal runs end in equal bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from smidgen.coordinator.rounds.learning.memory import Memory, UnreadableError
from smidgen.edge_client.wire.tensors import AdapterState

Decay: TypeAlias = float | Literal["none", "linear"]


@dataclass(frozen=True)
class ServerRates:
    """The numbers of a server optimizer, by the names of Reddi et al. 2021 (arXiv:2003.00295).

    Attributes:
        lr: eta, of the first step.
        beta_1: Share of the running mean of pseudo-gradients that a step keeps; FedAvgM's momentum.
        beta_2: The same of their squares.
        tau: Added to the root of the squares; the smaller, the more all numbers move alike.
        is_corrected: Whether running means are corrected for starting from zero, as Adam does.
        decay: How `lr` falls: see `factor`.
    """

    lr: float = 1.0
    beta_1: float = 0.0
    beta_2: float = 0.0
    tau: float = 0.0
    is_corrected: bool = False
    decay: Decay = "none"


def factor(decay: Decay, round_index: int, rounds: int) -> float:
    """Share of the learning rate in a round; from 1 down, never below 0.

    Args:
        decay: `none`; `linear`, by equal parts from 1 in round 1 to 1 / rounds in the last; or d
            for 1 - d r in round r.
        round_index: r, 1-based.
        rounds: Of the run.
    """
    if decay == "none":
        return 1.0
    if decay == "linear":
        return max(0.0, 1.0 - (round_index - 1) / max(1, rounds))
    return max(0.0, 1.0 - decay * round_index)


class ServerOptimizer(Protocol):
    """One step on the server; everything that it remembers goes through its arguments.

    One whose step does not grow with the mean, such as Adam's, says so by an attribute
    `is_scale_free` (see `is_scale_free` below).
    """

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """The adapter after a round, float32, and what the next step needs to know.

        Args:
            adapter: The one before; not changed.
            mean: The cohort's mean delta; equal names and shapes.
            memory: What the last step gave; empty at the first, and after a roll-back.
            round_index: 1-based.
            rounds: Of the run.
        """


PLAIN = ServerRates()


def is_scale_free(optimizer: object) -> bool:
    """Whether steps tell nothing of how long updates are, since they are as long for any mean.

    The mean is what is held against the rounds before then, not the step.
    """
    return bool(getattr(optimizer, "is_scale_free", False))


@dataclass(frozen=True)
class AddMean:
    """FedAvg's: lr times the mean is added; nothing is remembered."""

    rates: ServerRates = PLAIN

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """As `ServerOptimizer` has it."""
        lr = self.rates.lr * factor(self.rates.decay, round_index, rounds)
        if lr != 1.0:
            mean = {name: lr * tensor.astype(np.float64) for name, tensor in mean.items()}
        return apply_delta(adapter, mean), {}


def apply_delta(adapter: AdapterState, mean: AdapterState) -> AdapterState:
    """Add the cohort's mean delta to the adapter; float32.

    Raises:
        ValueError: The two disagree on names.
    """
    for name in sorted(set(adapter) ^ set(mean)):
        raise ValueError(f"tensor {name!r} is not in both adapter and mean")
    return {
        name: (tensor.astype(np.float64) + mean[name]).astype(np.float32)
        for name, tensor in adapter.items()
    }


MEAN, SQUARE, STEPS = "mean.", "square.", "steps"


@dataclass(frozen=True)
class Momentum:
    """FedAvgM: v = momentum v + delta, x = x + lr v; without momentum it is FedAvg.

    No dampening: once rounds agree, a step is 1 / (1 - momentum) as long as their mean.
    """

    rates: ServerRates

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """As `ServerOptimizer` has it."""
        lr = self.rates.lr * factor(self.rates.decay, round_index, rounds)
        before = _remembered(memory, MEAN, adapter)
        velocity = {name: self.rates.beta_1 * before[name] + mean[name] for name in adapter}
        after = {name: _moved(tensor, lr * velocity[name]) for name, tensor in adapter.items()}
        return after, _kept(MEAN, velocity)


@dataclass(frozen=True)
class Adaptive:
    """FedAdagrad, FedAdam or FedYogi, by how squares are remembered.

    m = beta_1 m + (1 - beta_1) delta and x = x + lr m / (sqrt(v) + tau). With `is_corrected`, m is
    divided by 1 - beta_1^t and v by 1 - beta_2^t before that, t being the steps since the memory
    was empty (Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1). flwr's FedAdam corrects as if one
    step more had been taken and leaves tau uncorrected; Reddi et al. correct nothing.

    Where tau is small, a positive multiple of all of a run's deltas gives the same steps, and no
    number moves by much more than `lr`.

    Attributes:
        rates: Its numbers.
        squares: How the squares are remembered: one of `adagrad`, `adam`, `yogi`.
        is_scale_free: See `optimizers.is_scale_free`.
    """

    rates: ServerRates
    squares: Callable[[np.ndarray, np.ndarray, float], np.ndarray]  # (before, delta^2, b_2)
    is_scale_free: ClassVar[bool] = True

    def step(
        self,
        adapter: AdapterState,
        mean: AdapterState,
        memory: Memory,
        round_index: int,
        rounds: int,
    ) -> tuple[AdapterState, Memory]:
        """As `ServerOptimizer` has it."""
        rates = self.rates
        lr = rates.lr * factor(rates.decay, round_index, rounds)
        means = _remembered(memory, MEAN, adapter)
        squares = _remembered(memory, SQUARE, adapter)
        steps = int(memory[STEPS][0]) + 1 if STEPS in memory else 1
        mean_share, square_share = 1.0, 1.0
        if rates.is_corrected:
            mean_share -= rates.beta_1**steps
            square_share -= rates.beta_2**steps
        after: AdapterState = {}
        for name, tensor in adapter.items():
            delta = mean[name].astype(np.float64)
            means[name] = rates.beta_1 * means[name] + (1.0 - rates.beta_1) * delta
            squares[name] = self.squares(squares[name], np.square(delta), rates.beta_2)
            root = np.sqrt(squares[name] / square_share) + rates.tau
            after[name] = _moved(tensor, lr * (means[name] / mean_share) / root)
        kept = _kept(MEAN, means) | _kept(SQUARE, squares)
        return after, kept | {STEPS: np.array([steps], np.int64)}


def adagrad(before: np.ndarray, square: np.ndarray, beta_2: float) -> np.ndarray:
    """The sum of all squares; beta_2 does not matter."""
    return np.asarray(before + square)


def adam(before: np.ndarray, square: np.ndarray, beta_2: float) -> np.ndarray:
    """Their running mean."""
    return np.asarray(beta_2 * before + (1.0 - beta_2) * square)


def yogi(before: np.ndarray, square: np.ndarray, beta_2: float) -> np.ndarray:
    """Moves by (1 - beta_2) of the newest square towards it: it forgets more slowly than `adam`."""
    return np.asarray(before - (1.0 - beta_2) * square * np.sign(before - square))


def _moved(tensor: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.asarray(tensor.astype(np.float64) + step, np.float32)


def _kept(part: str, tensors: AdapterState) -> Memory:
    with np.errstate(over="ignore"):  # infinity, which is not taken
        return {f"{part}{name}": tensor.astype(np.float32) for name, tensor in tensors.items()}


def _remembered(memory: Memory, part: str, adapter: AdapterState) -> AdapterState:
    """What is remembered of each of the adapter's tensors, float64; zeros in an empty memory.

    Raises:
        UnreadableError: It is another adapter's.
    """
    if not memory:
        return {name: np.zeros(tensor.shape) for name, tensor in adapter.items()}
    found = {}
    for name, tensor in adapter.items():
        known = memory.get(f"{part}{name}")
        if known is None or known.shape != tensor.shape:
            raise UnreadableError(
                f"the server optimizer remembers no {part.rstrip('.')} of tensor {name!r} with "
                f"shape {list(tensor.shape)}: this is another optimizer's or adapter's memory; "
                "roll the run back, which empties it"
            )
        found[name] = known.astype(np.float64)
    return found
