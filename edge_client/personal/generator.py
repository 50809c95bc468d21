"""Which ranks a device needs, told from its texts: FedP2EFT's strategy generator.

A net of one hidden layer reads the means and deviations of what the base's layers get, and gives a
factor for every rank of every module of a bank (Lee et al. 2026, arXiv:2502.04387):

    features -> linear (twice as many) -> PReLU -> linear -> lambda

Its numbers are an adapter's: float32 tensors by name, so they travel, are averaged, journaled and
coded as any other. Numpy forward and backward, in float64.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.spec import PREFIX, AdapterSpec, lora_modules
from edge_client.bases.architectures import Shape
from edge_client.errors import Failed
from edge_client.personal.bank import within
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState

NAMED = "generator."
IN, IN_BIAS = NAMED + "hidden.weight", NAMED + "hidden.bias"
SLOPE = NAMED + "slope"
OUT, OUT_BIAS = NAMED + "lambda.weight", NAMED + "lambda.bias"
WIDER = 2  # hidden units for each feature
FIRST_SLOPE, FIRST_LAMBDA = 0.25, 1.0


class GeneratorError(Failed):
    """Numbers that are not a generator of this base and bank."""


@dataclass(frozen=True)
class Generator:
    """The net for one base and one bank.

    Attributes:
        modules: The bank's modules, by full name, sorted.
        rank: The bank's ranks in each of them.
        layers: Of the base, as far as their spread is told (`Engine.layers`).
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
            SLOPE: (1,),
            OUT: (given, hidden),
            OUT_BIAS: (given,),
        }

    def first(self, seed: int) -> AdapterState:
        """The numbers that a run starts from: every lambda is 1, which is LoRA itself.

        Equal seeds give equal bytes.
        """
        shapes = self.shapes()
        draw = np.random.Generator(np.random.PCG64(derive_seed(seed, "generator")))
        bound = 1.0 / math.sqrt(shapes[IN][1])
        return {
            IN: draw.uniform(-bound, bound, shapes[IN]).astype(np.float32),
            IN_BIAS: draw.uniform(-bound, bound, shapes[IN_BIAS]).astype(np.float32),
            SLOPE: np.full(1, FIRST_SLOPE, np.float32),
            OUT: np.zeros(shapes[OUT], np.float32),
            OUT_BIAS: np.full(shapes[OUT_BIAS], FIRST_LAMBDA, np.float32),
        }

    def check(self, numbers: AdapterState) -> None:
        """Refuse what is not a generator of this base and bank.

        Raises:
            GeneratorError: Names what differs.
        """
        expected = self.shapes()
        if set(numbers) != set(expected):
            raise GeneratorError("no generator: it has other tensors; a `+generator` run gives one")
        told = {name: numbers[name].shape for name in expected}
        if told[IN] != expected[IN]:
            raise GeneratorError(
                f"the generator is of another base: it reads {told[IN][1]} features, and this base "
                f"of {self.layers} layers gives {expected[IN][1]}"
            )
        if told != expected:
            raise GeneratorError(
                f"the generator is of another bank: it gives {told[OUT][0]} factors, and "
                f"{len(self.modules)} modules of {self.rank} ranks have {expected[OUT][0]}"
            )

    def lambdas(self, numbers: AdapterState, features: np.ndarray) -> dict[str, np.ndarray]:
        """A factor for every rank of every module, float32, as they count.

        Args:
            numbers: Its own.
            features: As `Ground.standard` gives them.
        """
        given = within(_forward(numbers, features)[-1].astype(np.float32))
        rows = given.reshape(len(self.modules), self.rank)
        return {module: rows[place].copy() for place, module in enumerate(self.modules)}

    def pull(
        self, numbers: AdapterState, features: np.ndarray, aims: Mapping[str, np.ndarray]
    ) -> tuple[float, AdapterState]:
        """Mean distance of its lambdas from others, and the gradients of that, float32.

        The ends of lambda's range let gradients through (straight-through), as a bank's do.

        Args:
            numbers: Its own.
            features: As `Ground.standard` gives them.
            aims: Lambdas by module.
        """
        given, slope = features.astype(np.float64), float(numbers[SLOPE][0])
        before, hidden, out = _forward(numbers, features)
        aim = np.concatenate([aims[module] for module in self.modules]).astype(np.float64)
        apart = within(out).astype(np.float64) - aim
        d_out = np.sign(apart) / len(aim)
        d_hidden = numbers[OUT].astype(np.float64).T @ d_out
        d_before = d_hidden * np.where(before > 0, 1.0, slope)
        pulled = {
            IN: np.outer(d_before, given),
            IN_BIAS: d_before,
            SLOPE: np.array([d_hidden @ np.minimum(before, 0.0)]),
            OUT: np.outer(d_out, hidden),
            OUT_BIAS: d_out,
        }
        gradients = {name: one.astype(np.float32) for name, one in pulled.items()}
        return float(np.abs(apart).mean()), gradients


def generator_of(bank: AdapterSpec, shape: Shape) -> Generator:
    """The net of a bank.

    Args:
        bank: As `bank_spec` gives it.
        shape: The base's.
    """
    modules = lora_modules(bank, shape)
    return Generator(tuple(sorted(PREFIX + name for name in modules)), bank.rank, shape.layers)


def _forward(
    numbers: AdapterState, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden units before and after PReLU, and what comes out, float64."""
    wide = {name: one.astype(np.float64) for name, one in numbers.items()}
    before = wide[IN] @ features.astype(np.float64) + wide[IN_BIAS]
    hidden = np.where(before > 0, before, wide[SLOPE][0] * before)
    return before, hidden, wide[OUT] @ hidden + wide[OUT_BIAS]
