"""The numbers of a strategy generator: a net that gives a factor for every rank of a bank.

They are an adapter's, float32 tensors by name, so they travel, are averaged, journaled and coded as
any other. What the net computes is in `edge_client.personal.nets.generator`.
"""

import math
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.spec import PREFIX, AdapterError, AdapterSpec, lora_modules
from edge_client.bases.architectures import Shape
from edge_client.wire.tensors import AdapterState

NAMED = "generator."
IN, IN_BIAS = NAMED + "hidden.weight", NAMED + "hidden.bias"
SLOPE = NAMED + "slope"
OUT, OUT_BIAS = NAMED + "lambda.weight", NAMED + "lambda.bias"
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
