"""Means of mixed ranks that are wrong on purpose: what the exact one is compared with.

A and B are averaged apart, so the mean of B times the mean of A stands where the mean of B A
should: no run can ask for it, simulations can. What a device of a lower rank lacks is either
zero (`padded`: HetLoRA's baseline, Cho et al. 2024, arXiv:2401.06432) or left out (`apart`).
"""

from collections.abc import Iterable

import numpy as np

from coordinator.rounds.learning.exact import Product, at_rank
from coordinator.rounds.learning.mean import Sum
from coordinator.rounds.learning.products import LORA_A, LORA_B, lora_modules, others
from edge_client.updates.step import Contribution
from edge_client.wire.tensors import AdapterState


def factors_mean(
    updates: Iterable[Contribution], adapter: AdapterState, is_padded: bool
) -> Product:
    """The adapter after a round, A and B averaged each for itself, in the run's scaling.

    Args:
        updates: By device id, one or more.
        adapter: What the step started from.
        is_padded: Whether what a device lacks counts as zero; else not at all.
    """
    plain, sums = Sum(), {name: np.zeros(tensor.shape) for name, tensor in adapter.items()}
    weights = {module: np.zeros(len(adapter[module + LORA_A])) for module in lora_modules(adapter)}
    for one in updates:
        plain.add(others(one.delta), one.weight, one.share)
        for module in lora_modules(one.delta):
            a, b = module + LORA_A, module + LORA_B
            rank, most = len(one.delta[a]), len(adapter[a])
            given = at_rank({name: adapter[name] for name in (a, b)}, rank)
            after = {name: given[name] + one.share * one.delta[name] for name in (a, b)}
            sums[a][:rank] += one.weight * after[a]
            sums[b][:, :rank] += one.weight * most / rank * after[b]
            weights[module][: most if is_padded else rank] += one.weight
    mean = plain.mean()
    found = {name: adapter[name].astype(np.float64) + mean[name] for name in mean}
    for module, weight in weights.items():
        a, b = module + LORA_A, module + LORA_B
        known = np.maximum(weight, 1e-300)
        found[a] = np.where(weight[:, np.newaxis] > 0, sums[a] / known[:, np.newaxis], adapter[a])
        found[b] = np.where(weight > 0, sums[b] / known, adapter[b])
    return Product({name: found[name].astype(np.float32) for name in adapter}, None)
