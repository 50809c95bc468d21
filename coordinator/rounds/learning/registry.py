"""Registry of means and server optimizers: ours, then plug-ins; and FedAvg's streaming mean.

FedAvg adds each update to a float64 sum and drops it, so memory does not grow with the cohort.
Floating-point sums depend on their order; callers sort updates by device id, so the order of
arrival cannot change a byte.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from smidgen.coordinator.rounds.extensions import (
    NAME,
    CheckedMean,
    CheckedOptimizer,
    Kind,
    PluginError,
    find,
    made,
    names_of,
    split,
)
from smidgen.coordinator.rounds.learning.optimizers import (
    Adaptive,
    AddMean,
    Momentum,
    ServerOptimizer,
    ServerRates,
    adagrad,
    adam,
    yogi,
)
from smidgen.coordinator.rounds.learning.robust import GeometricMedian, Krum, Median, TrimmedMean
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

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


# By name: how a mean is written, and what makes it of the texts behind its name.
MEANS: Mapping[str, tuple[str, Callable[..., Mean]]] = {
    "fedavg": ("fedavg", WeightedMean),
    "trimmed": ("trimmed:SHARE", lambda share: TrimmedMean(float(share))),
    "median": ("median", Median),
    "krum": ("krum:F", lambda hostile: Krum(int(hostile))),
    "multikrum": ("multikrum:F:M", lambda hostile, chosen: Krum(int(hostile), int(chosen))),
    "geometric": ("geometric", GeometricMedian),
}
# The numbers that each optimizer goes by where the run file does not say them.
OPTIMIZERS: Mapping[str, Mapping[str, float]] = {
    "fedavg": {"lr": 1.0},
    "fedavgm": {"lr": 1.0, "momentum": 0.9},
    "fedadagrad": {"lr": 0.01, "beta_1": 0.0, "tau": 1e-3},
    "fedadam": {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    "fedyogi": {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
}


def mean_of(text: str) -> Mean:
    """What a run makes of a cohort's updates.

    Raises:
        ValueError: One of ours that is not written so, or whose numbers make no sense.
        PluginError: Neither ours nor known here.
    """
    name, arguments = split(text)
    if name not in MEANS:
        return CheckedMean(*made("mean", text))
    form, factory = MEANS[name]
    count = form.count(":")
    demand(len(arguments) == count, f"mean: {form} is expected, not {text!r}")
    try:
        return factory(*arguments)
    except ValueError as error:
        is_number = "could not convert" in str(error) or "invalid literal" in str(error)
        demand(not is_number, f"mean: {form} is expected, not {text!r}")
        raise


def least_of(text: str) -> int:
    """Updates that one of our means needs; of an extension nobody knows: 1."""
    return getattr(mean_of(text), "least", 1) if split(text)[0] in MEANS else 1


def optimizer_of(text: str, rates: ServerRates) -> ServerOptimizer:
    """What a run makes of their mean.

    Raises:
        PluginError: Neither ours nor known here.
    """
    ours: dict[str, ServerOptimizer] = {
        "fedavg": AddMean(rates),
        "fedavgm": Momentum(rates),
        "fedadagrad": Adaptive(rates, adagrad),
        "fedadam": Adaptive(rates, adam),
        "fedyogi": Adaptive(rates, yogi),
    }
    return ours[text] if text in ours else CheckedOptimizer(*made("optimizer", text))


def check_name(kind: Kind, text: str, ours: Sequence[str]) -> None:
    """Refuse what no run file can name, whatever is installed.

    Raises:
        ValueError: It is not a name with arguments, or gives arguments to one of ours without.
    """
    known = ", ".join(ours)
    is_name = NAME.fullmatch(text) and (
        kind == "mean" or split(text)[0] not in ours or text in ours
    )
    demand(bool(is_name), f"{kind}: one of {known}, or an extension such as name:argument")


def check_known(kind: Kind, text: str, ours: Sequence[str]) -> None:
    """Refuse what this process does not know, and an extension that cannot be made as it is named.

    Raises:
        WrongInput: Nobody here has that name, or what stands behind it is wrong.
    """
    name, known = split(text)[0], [*ours, *names_of(kind)]
    demand(
        name in {split(one)[0] for one in known},
        f"{kind}: {name!r} is not known; known are {', '.join(known)}. An extension is known where "
        "its package is installed, or with --plugins FOLDER",
    )
    if find(kind, name) is not None:
        try:
            made(kind, text)
        except PluginError as error:
            raise WrongInput(str(error)) from error
