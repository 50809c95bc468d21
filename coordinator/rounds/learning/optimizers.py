"""Server optimizers: what is made of a cohort's mean delta, which is a gradient's negative."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coordinator.rounds.learning.memory import Memory
from coordinator.rounds.learning.rates import Rates, factor
from edge_client.wire.tensors import AdapterState


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


PLAIN = Rates()


def is_scale_free(optimizer: object) -> bool:
    """Whether steps tell nothing of how long updates are, since they are as long for any mean.

    The mean is what is held against the rounds before then, not the step.
    """
    return bool(getattr(optimizer, "is_scale_free", False))


@dataclass(frozen=True)
class AddMean:
    """FedAvg's: lr times the mean is added; nothing is remembered."""

    rates: Rates = PLAIN

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
