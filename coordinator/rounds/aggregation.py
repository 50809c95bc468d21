"""FedAvg as a stream: every update is folded into a float64 sum and dropped.

Memory does not grow with the cohort. Floating-point sums depend on their order, so the caller
feeds updates sorted by device id; then the order of arrival cannot change a byte.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from coordinator.rounds.bounds import Bounds, norm_of
from edge_client.wire.tensors import AdapterState, Update

Weighted = tuple[AdapterState, float] | tuple[AdapterState, float, float]


def bounded_mean(updates: Iterable[tuple[Update, float | None]], bounds: Bounds) -> AdapterState:
    """The cohort's mean delta, every update within a round's bounds.

    Updates inside them count as `weighted_mean` has it, to the last bit.

    Args:
        updates: Each with its norm, or None where that is not known; read once and not kept.
        bounds: Of the round.
    """

    def weighted() -> Iterator[Weighted]:
        for update, known in updates:
            norm = norm_of(update.delta) if known is None else known
            weight = bounds.weight(update.num_examples, norm)
            yield update.delta, weight, bounds.share(norm)

    return weighted_mean(weighted())


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
    sums: dict[str, np.ndarray] = {}
    total_weight = 0.0
    for delta, weight, *scaled in updates:
        if not weight > 0.0:
            raise ValueError(f"weight {weight}: a positive number of examples is expected")
        if not total_weight:
            sums = {name: np.zeros(tensor.shape) for name, tensor in delta.items()}
        _check_agreement(sums, delta)
        for name, tensor in delta.items():
            sums[name] += np.float64(weight * math.prod(scaled)) * tensor.astype(np.float64)
        total_weight += weight
    if not total_weight:
        raise ValueError("no update to average; a cohort of one or more is expected")
    return {name: (tensor / total_weight).astype(np.float32) for name, tensor in sums.items()}


def _check_agreement(sums: AdapterState, delta: AdapterState) -> None:
    for name in sorted(set(sums) ^ set(delta)):
        raise ValueError(f"tensor {name!r} is not in every update of the cohort")
    for name, tensor in delta.items():
        if tensor.shape != sums[name].shape:
            raise ValueError(f"tensor {name!r}: shapes {tensor.shape} and {sums[name].shape}")


def apply_delta(adapter: AdapterState, mean: AdapterState) -> AdapterState:
    """Add the cohort's mean delta to the adapter (server learning rate 1); float32.

    Raises:
        ValueError: The two disagree on names.
    """
    for name in sorted(set(adapter) ^ set(mean)):
        raise ValueError(f"tensor {name!r} is not in both adapter and mean")
    return {
        name: (tensor.astype(np.float64) + mean[name]).astype(np.float32)
        for name, tensor in adapter.items()
    }
