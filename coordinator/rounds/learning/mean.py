"""FedAvg as a stream: every update is folded into a float64 sum and dropped.

Memory does not grow with the cohort. Floating-point sums depend on their order, so the caller
feeds updates sorted by device id; then the order of arrival cannot change a byte.
"""

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from edge_client.updates.step import Contribution
from edge_client.wire.tensors import AdapterState

Weighted = tuple[AdapterState, float] | tuple[AdapterState, float, float]


class Mean(Protocol):
    """What is made of a cohort's updates; the order of arrival changes nothing."""

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        """The cohort's delta: the adapter's names and shapes.

        Args:
            updates: By device id, one or more; may be read once alone.
            adapter: What they started from.
        """


class WeightedMean:
    """FedAvg's, streamed: memory does not grow with the cohort."""

    def mean(self, updates: Iterable[Contribution], adapter: AdapterState) -> AdapterState:
        """As `Mean` has it."""
        return weighted_mean((one.delta, one.weight, one.share) for one in updates)


def weighted_mean(updates: Iterable[Weighted]) -> AdapterState:
    """Average client deltas by their example counts (FedAvg).

    McMahan et al. 2017 (arXiv:1602.05629), Algorithm 1. One client alone gives its own delta,
    only ratios of weights matter, and averaging the parts of a split cohort by their summed
    weights gives the same result up to float32 rounding.

    Args:
        updates: Delta (float32) and positive weight of each client, and what the delta is
            multiplied by where it is; equal names and shapes. Each is read once and not kept.

    Raises:
        ValueError: The cohort is empty, a weight is not positive, or its members disagree on
            names or shapes.
    """
    found = Sum()
    for delta, weight, *scaled in updates:
        found.add(delta, weight, math.prod(scaled))
    return found.mean()


class Sum:
    """A weighted sum of deltas as it grows; see `weighted_mean`."""

    def __init__(self) -> None:
        self._sums: AdapterState = {}
        self._total = 0.0

    def add(self, delta: AdapterState, weight: float, share: float = 1.0) -> None:
        """One more, times `share`; its names and shapes are those of the first."""
        if not weight > 0.0:
            raise ValueError(f"weight {weight}: a positive number of examples is expected")
        if not self._total:
            self._sums = {name: np.zeros(tensor.shape) for name, tensor in delta.items()}
        _check_agreement(self._sums, delta)
        for name, tensor in delta.items():
            self._sums[name] += np.float64(weight * share) * tensor.astype(np.float64)
        self._total += weight

    def mean(self) -> AdapterState:
        """Their mean by weight, float32."""
        if not self._total:
            raise ValueError("no update to average; a cohort of one or more is expected")
        total = self._total
        return {name: (tensor / total).astype(np.float32) for name, tensor in self._sums.items()}


def _check_agreement(sums: AdapterState, delta: AdapterState) -> None:
    for name in sorted(set(sums) ^ set(delta)):
        raise ValueError(f"tensor {name!r} is not in every update of the cohort")
    for name, tensor in delta.items():
        if tensor.shape != sums[name].shape:
            raise ValueError(f"tensor {name!r}: shapes {tensor.shape} and {sums[name].shape}")
