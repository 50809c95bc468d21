"""Nets trained in place of an adapter: a strategy generator or learned learning rates.

A generator (`edge_client.personal.nets.generator`) outputs a factor for every rank of a bank; a
rates net (`edge_client.personal.nets.rates`) outputs one for every tensor of an adapter. Each tells
a device how to train its own adapter. Their weights are float32 tensors by name, as an adapter's
are, so they are sent, averaged, journaled and compressed in the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.banks import bank_spec
from edge_client.adapters.spec import PREFIX, AdapterError, AdapterSpec, lora_modules
from edge_client.bases.architectures import Shape
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState

GENERATOR_NAME = "generator."
IN, IN_BIAS = GENERATOR_NAME + "hidden.weight", GENERATOR_NAME + "hidden.bias"
SLOPE = GENERATOR_NAME + "slope"
OUT, OUT_BIAS = GENERATOR_NAME + "lambda.weight", GENERATOR_NAME + "lambda.bias"
WIDER = 2  # hidden units for each feature
FIRST_SLOPE, FIRST_LAMBDA = 0.25, 1.0


@dataclass(frozen=True)
class Generator:
    """The net for one base and one bank: features, twice as many hidden units, lambdas.

    Attributes:
        modules: The bank's modules, by full name, sorted.
        rank: The bank's ranks in each of them.
        layers: Computed layers of the base; each has two features.
    """

    modules: tuple[str, ...]
    rank: int
    layers: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its numbers, by name."""
        features = 2 * self.layers
        hidden, given = WIDER * features, len(self.modules) * self.rank
        return {
            IN: (hidden, features),
            IN_BIAS: (hidden,),
            OUT: (given, hidden),
            OUT_BIAS: (given,),
            SLOPE: (1,),
        }

    def first(self, seed: int) -> AdapterState:
        """The numbers that a run starts from: every lambda is 1, which is LoRA itself.

        Equal seeds give equal bytes.
        """
        shapes = self.shapes()
        draw = np.random.Generator(np.random.PCG64(seed))
        bound = 1.0 / math.sqrt(shapes[IN][1])
        return {
            IN: draw.uniform(-bound, bound, shapes[IN]).astype(np.float32),
            IN_BIAS: draw.uniform(-bound, bound, shapes[IN_BIAS]).astype(np.float32),
            OUT: np.zeros(shapes[OUT], np.float32),
            OUT_BIAS: np.full(shapes[OUT_BIAS], FIRST_LAMBDA, np.float32),
            SLOPE: np.full(1, FIRST_SLOPE, np.float32),
        }

    def check(self, numbers: AdapterState) -> None:
        """Refuse what is not a generator of this base and bank.

        Raises:
            AdapterError: Names what differs.
        """
        expected = self.shapes()
        if set(numbers) != set(expected):
            raise AdapterError("no generator: it has other tensors; a +generator run gives one")
        told = {name: numbers[name].shape for name in expected}
        if told[IN] != expected[IN]:
            raise AdapterError(
                f"the generator is of another base: it reads {(0, *told[IN])[-1]} features, and "
                f"this base of {self.layers} layers gives {expected[IN][1]}"
            )
        if told != expected:
            raise AdapterError(
                f"the generator is of another bank: it gives {(*told[OUT], 0)[0]} factors, and "
                f"{len(self.modules)} modules of {self.rank} ranks have {expected[OUT][0]}"
            )


def generator_of(spec: AdapterSpec, shape: Shape) -> Generator:
    """The net of a bank.

    Args:
        spec: The generator, or its bank.
        shape: The base's.
    """
    modules = lora_modules(spec, shape)
    return Generator(tuple(sorted(PREFIX + name for name in modules)), spec.rank, shape.layers)


RATES_NAME = "rates."
OWN = RATES_NAME + "own"
LINEARS = tuple(RATES_NAME + name for name in ("first", "second", "factor"))
WEIGHT, BIAS = ".weight", ".bias"
HIDDEN = 100
LARGEST = 1000.0  # of a factor; the smallest is 0, by straight-through clamping
GAIN = 0.1  # of the hidden layers' first weights; all biases start at 1


@dataclass(frozen=True)
class RatesNet:
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


def rates_of(adapter: AdapterState, layers: int) -> RatesNet:
    """The net of an adapter.

    Args:
        adapter: Any; every tensor gets a rate.
        layers: Of the base (`Engine.layers`).
    """
    return RatesNet(tuple(sorted(adapter)), 2 * layers)


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


def net_of(spec: AdapterSpec, shape: Shape) -> Generator | RatesNet:
    """The net that an adapter's name names.

    Args:
        spec: With a net.
        shape: The base's.
    """
    if spec.net == "generator":
        return generator_of(spec, shape)
    names = [
        f"{PREFIX}{module}.lora_{side}.weight"
        for module in lora_modules(bank_spec(spec, shape), shape)
        for side in "AB"
    ]
    return RatesNet(tuple(sorted(names)), 2 * shape.layers)
