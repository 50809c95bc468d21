"""Rank banks, from which a device's ranks are selected, and nets trained in place of an adapter.

Modules of an adapter cut from a bank differ in rank but keep the bank's scaling, so a rank has the
same effect wherever it stands. `StackedAdapters` puts a device's own LoRA on top of a shared one;
in modules that both have, their ranks stand side by side and their changes to the base add up:

    stack = StackedAdapters(own, shared, shape)
    engine = opened(stack.spec)
    engine.put(stack.joined(own_numbers, shared_numbers))

A generator net (`smidgen.edge_client.personal.generator`) outputs a factor for every rank of a
bank; a rates net (`smidgen.edge_client.personal.fitting`) outputs one for every tensor of an
adapter. Each tells a device how to train its own adapter. Their weights are float32 tensors by
name, as an adapter's are, so they are sent, averaged, journaled and compressed in the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from smidgen.edge_client.adapters.spec import (
    PREFIX,
    AdapterError,
    AdapterSpec,
    ModuleRank,
    lead,
    lora_modules,
    parse_adapter,
)
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.families import family_of
from smidgen.edge_client.errors import demand
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed

SCALING = 2.0  # alpha / r of the bank, and of every module that is cut from it


def bank_spec(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """An adapter with the same rank in each of its modules, all with the bank's scaling.

    Args:
        spec: LoRA, or a net for one; its rank is the bank's.
        shape: The base's.
    """
    named = {one[:2]: one for one in lora_modules(spec, shape).values()}
    return with_ranks(spec, shape, dict.fromkeys(named, spec.rank))


def computed(spec: AdapterSpec, shape: Shape) -> AdapterSpec:
    """The adapter that an engine computes with: of a net, the LoRA that it is for; of a form, LoRA.

    Args:
        spec: What is trained.
        shape: The base's.
    """
    return bank_spec(spec, shape) if spec.net else replace(spec, form="")


def with_ranks(
    spec: AdapterSpec, shape: Shape, ranks: Mapping[tuple[int, str], int]
) -> AdapterSpec:
    """An adapter of these ranks by (layer, linear), and of no other module, scaled by `SCALING`.

    Args:
        spec: LoRA; tells the linears, and whether a head is trained beside it.
        shape: The base's.
        ranks: 0: the module carries none, as one that is not named.
    """
    family = family_of(shape.architecture)
    known = [lead(family, target) for target in spec.adapted if target in family.linears]
    linears = list(dict.fromkeys(known))
    parts = tuple(
        ModuleRank(layer, target, rank, SCALING * rank if rank else 16.0)
        for layer in range(shape.stored_layers)
        for target in linears
        for rank in (ranks.get((layer, target), 0),)
    )
    return parse_adapter(str(replace(spec, targets=tuple(linears), top=0, ranks=parts, net="")))


LAMBDA = ".lora_lambda"  # factors of a module's ranks, while a bank is trained
PARTS = {LORA_A: 0, LORA_B: 1}  # the axis along which a tensor's ranks lie


class StackedAdapters:
    """Two adapters as one, whose ranks of the shared one come first.

    Laws: what the joined numbers change of the base is the sum of what the two change of it;
    `own` of them gives one's own back, bit by bit.

    Args:
        own: LoRA whose modules are scaled as banks are, a head, or both.
        shared: LoRA alone, of any scaling.
        shape: The base's.

    Attributes:
        spec: Of both together.

    Raises:
        AdapterError: The shared one trains something else too.
    """

    def __init__(self, own: AdapterSpec, shared: AdapterSpec, shape: Shape) -> None:
        check_beneath(shared)
        lower, upper = lora_modules(shared, shape), lora_modules(own, shape)
        self._lower = {PREFIX + name: one for name, one in lower.items()}
        self._upper = {PREFIX + name: one for name, one in upper.items()}
        ranks: dict[tuple[int, str], int] = {}
        for one in (*lower.values(), *upper.values()):
            ranks[one[:2]] = ranks.get(one[:2], 0) + one.rank
        targets = tuple(dict.fromkeys((*shared.adapted, *own.adapted)))
        self.spec = with_ranks(AdapterSpec(rank=1, targets=targets, head=own.head), shape, ranks)

    def joined(self, own: AdapterState, shared: AdapterState) -> AdapterState:
        """Both in one.

        Args:
            own: One's own numbers.
            shared: The shared one's.
        """
        found: AdapterState = {}
        for module in dict.fromkeys((*self._lower, *self._upper)):
            for part, axis in PARTS.items():
                both = []
                if module in self._lower:
                    lower = self._lower[module]
                    scale = np.float32(lower.alpha / lower.rank / SCALING)
                    both.append(shared[module + part] * (scale if part == LORA_B else 1))
                if module in self._upper:
                    both.append(own[module + part])
                found[module + part] = np.concatenate(both, axis=axis, dtype=np.float32)
        return found | head_of(own)

    def own(self, joined: Mapping[str, np.ndarray]) -> AdapterState:
        """One's own part of numbers, or of their gradients."""
        found = head_of(joined)
        for module in self._upper:
            below = self._lower[module].rank if module in self._lower else 0
            for part, axis in PARTS.items():
                _, upper = np.split(joined[module + part], [below], axis=axis)
                found[module + part] = np.ascontiguousarray(upper)
        return found


def check_beneath(shared: AdapterSpec) -> None:
    """Refuse what nothing can be stacked upon.

    Raises:
        AdapterError: It is not LoRA alone.
    """
    others = shared.prompt_tokens or shared.head or shared.bias or shared.net or shared.ridge
    is_plain = not others
    demand(
        is_plain and shared.largest_rank > 0,
        f"shared adapter {shared}: LoRA alone is expected below one's own",
        AdapterError,
    )


def head_of(numbers: Mapping[str, np.ndarray]) -> AdapterState:
    """What of LoRA's numbers is none of LoRA's: those of a head beside it."""
    return {name: one for name, one in numbers.items() if not name.endswith((*PARTS,))}


GENERATOR_NAME = "generator."
IN, IN_BIAS = GENERATOR_NAME + "hidden.weight", GENERATOR_NAME + "hidden.bias"
SLOPE = GENERATOR_NAME + "slope"
OUT, OUT_BIAS = GENERATOR_NAME + "lambda.weight", GENERATOR_NAME + "lambda.bias"
WIDER = 2  # hidden units for each feature
FIRST_SLOPE, FIRST_LAMBDA = 0.25, 1.0  # such a bank begins as plain LoRA of its rank


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
    taken = [features.astype(np.float64).ravel()]
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
