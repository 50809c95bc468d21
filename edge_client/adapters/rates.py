"""Numbers of learned rates: a net that gives a factor for every tensor of an adapter.

They are an adapter's, float32 tensors by name, as a generator's are, so they travel and are
averaged as any other. How they are learned is in `edge_client.personal.nets.rates`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.spec import AdapterError
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState

NAMED = "rates."
OWN = NAMED + "own"
LINEARS = tuple(NAMED + name for name in ("first", "second", "factor"))
WEIGHT, BIAS = ".weight", ".bias"
HIDDEN = 100
LARGEST = 1000.0  # of a factor; the smallest is 0, by straight-through clamping
GAIN = 0.1  # of the hidden layers' first weights; all biases start at 1


@dataclass(frozen=True)
class Rates:
    """The net for one base and one adapter.

    Attributes:
        tensors: Names of the adapter's tensors, sorted.
        features: How many the net reads: two for each layer of the base.
    """

    tensors: tuple[str, ...]
    features: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its numbers, by name."""
        sizes = (self.features, HIDDEN, HIDDEN, len(self.tensors))
        found: dict[str, tuple[int, ...]] = {OWN: (len(self.tensors),)}
        for name, inputs, outputs in zip(LINEARS, sizes, sizes[1:], strict=False):
            found |= {name + WEIGHT: (outputs, inputs), name + BIAS: (outputs,)}
        return found

    def first(self, seed: int) -> AdapterState:
        """The numbers that a run starts from: all factors are 1. Equal seeds give equal bytes."""
        draw = np.random.Generator(np.random.PCG64(derive_seed(seed, "rates")))
        found = {name: np.ones(shape, np.float32) for name, shape in self.shapes().items()}
        for name in LINEARS[:-1]:
            shape = found[name + WEIGHT].shape
            wide = GAIN * math.sqrt(2.0 / sum(shape))  # Glorot's
            found[name + WEIGHT] = (wide * draw.standard_normal(shape)).astype(np.float32)
        found[LINEARS[-1] + WEIGHT][:] = 0.0
        return found

    def check(self, numbers: AdapterState) -> None:
        """Refuse what is not a net of this base and adapter.

        Raises:
            AdapterError: Names what differs.
        """
        expected, first = self.shapes(), LINEARS[0] + WEIGHT
        if set(numbers) != set(expected):
            raise AdapterError("no learned rates: the file has other tensors")
        told = {name: numbers[name].shape for name in expected}
        if told[first] != expected[first]:
            raise AdapterError(
                f"the learned rates are of another base: they read "
                f"{(0, *told[first])[-1]} features, and this base gives {self.features}"
            )
        if told != expected:
            raise AdapterError(
                f"the learned rates are of another adapter: they are "
                f"{(0, *told[OWN])[-1]}, and it has {len(self.tensors)} tensors"
            )

    def factors(self, numbers: AdapterState, features: np.ndarray) -> dict[str, float]:
        """By tensor: how many times the learning rate it is trained at; 0 or more.

        Args:
            numbers: The net's.
            features: As `Ground.standard` gives them.
        """
        given, own = _forward(numbers, features)[-1], numbers[OWN].astype(np.float64)
        found = np.clip(given, 0.0, LARGEST) * np.maximum(own, 0.0)
        return dict(zip(self.tensors, found.tolist(), strict=True))

    def pull(
        self, numbers: AdapterState, features: np.ndarray, slopes: Mapping[str, float]
    ) -> AdapterState:
        """Gradients of the net's numbers, float32.

        Straight-through at the ends of both factors' ranges, so what lies outside can come back.

        Args:
            numbers: The net's.
            features: As `Ground.standard` gives them.
            slopes: A loss's gradient at each tensor's factor.
        """
        given, first, second, out = _forward(numbers, features)
        slope = np.array([slopes[name] for name in self.tensors])
        own = np.maximum(numbers[OWN].astype(np.float64), 0.0)
        found = {OWN: slope * np.clip(out, 0.0, LARGEST)}
        pushed = slope * own
        for name, taken in zip(reversed(LINEARS), (second, first, given), strict=True):
            found |= {name + WEIGHT: np.outer(pushed, taken), name + BIAS: pushed}
            pushed = (numbers[name + WEIGHT].astype(np.float64).T @ pushed) * (taken > 0)
        return {name: found[name].astype(np.float32) for name in numbers}


def rates_of(adapter: AdapterState, layers: int) -> Rates:
    """The net of an adapter.

    Args:
        adapter: Any; every tensor gets a rate.
        layers: Of the base (`Engine.layers`).
    """
    return Rates(tuple(sorted(adapter)), 2 * layers)


def _forward(
    numbers: AdapterState, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The features, both hidden layers after ReLU and what comes out, float64."""
    given = features.astype(np.float64).ravel()
    taken = [given]
    for name in LINEARS:
        weight, bias = (numbers[name + part].astype(np.float64) for part in (WEIGHT, BIAS))
        out = weight @ taken[-1] + bias
        taken.append(out if name == LINEARS[-1] else np.maximum(out, 0.0))
    return taken[0], taken[1], taken[2], taken[3]
