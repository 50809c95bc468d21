"""How fast each part of an adapter is trained, told from a device's texts: FedL2P.

Lee et al. 2023 (arXiv:2310.02420), as FedP2EFT compares with it: a net reads the features of the
device's texts and gives a factor for each tensor of its adapter, on top of one that is learned for
the tensor itself. Both start at 1, which is plain training.

    features -> linear (100) -> ReLU -> linear (100) -> ReLU -> linear -> factor
    learning rate of a tensor = lr * own factor * factor

What is approximated: the net goes down the loss on held-out texts after training. To be exact that
gradient would lead back through all steps, for each starts where the rates before it have led; it
would take second derivatives, which no engine gives. Here AdamW's directions count as given (first
order), so a rate's gradient is that of the loss after training, times how far the tensor went for
a rate of one. For a single step this is exact. On a tiny base (2 layers, width 16, four texts) its
cosine with the whole gradient by differences was 1.00 after 3 steps at a rate of 0.01 and 0.99
after 10, but 0.56 after 10 at 0.05 and -0.38 after 30 at 0.01: keep trainings short. FedP2EFT's own
code takes three terms of Neumann's series for the inverse of second derivatives instead.

The net's numbers are an adapter's, as a generator's are: they travel and are averaged as any other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.spec import AdapterError
from edge_client.engine.engine import Engine
from edge_client.engine.onnx_backend.adamw import AdamW
from edge_client.engine.trainer import TrainingError
from edge_client.errors import demand
from edge_client.personal.fitting import Fitted, Terms, fit
from edge_client.texts.batches import Batch
from edge_client.texts.examples import Example
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
class Learning:
    """How the net learns on one device.

    Attributes:
        trainings: Of the adapter, each followed by a step of the net; FedP2EFT's setting is 3.
        lr: Learning rate of the net, by Adam.
        own_lr: Of the tensors' own factors; theirs is a hundredth of what they start at.
    """

    trainings: int = 3
    lr: float = 1e-4
    own_lr: float = 1e-2

    def __post_init__(self) -> None:
        demand(1 <= self.trainings <= 1_000_000, "trainings: 1 to 1000000")
        for name in ("lr", "own_lr"):
            demand(0.0 < getattr(self, name) <= 100.0, f"{name}: above 0, at most 100")


@dataclass(frozen=True)
class Learned:
    """What a device's work for the net gave.

    Attributes:
        numbers: The net's, after it; nothing else may leave the device.
        losses: On the held-out texts after each training, in nats, before the net's step.
    """

    numbers: AdapterState
    losses: tuple[float, ...]


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


class Rated:
    """A form whose adapter moves by factors of what its numbers do, from where it starts.

    A number's gradient is that of the adapter as it is, so AdamW goes as it would for the adapter
    and each tensor of it gets a rate of its own. Law: all factors 1 are plain training, up to
    rounding. Weight decay would lead to the start, not to zero: leave it out.

    Args:
        start: The adapter at numbers of zero.
        factors: By tensor.
    """

    def __init__(self, start: AdapterState, factors: Mapping[str, float]) -> None:
        self._start, self._factors = start, factors

    def adapter(self, numbers: AdapterState) -> AdapterState:
        return {
            name: one + np.float32(self._factors[name]) * numbers[name]
            for name, one in self._start.items()
        }

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        return gradients

    def scales(self, numbers: AdapterState) -> frozenset[str]:
        return frozenset()

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """Nothing to settle."""


def rated_fit(
    engine: Engine,
    adapter: AdapterState,
    factors: Mapping[str, float],
    examples: Sequence[Example],
    terms: Terms,
    seed: int,
) -> tuple[Fitted, AdapterState]:
    """Train an adapter, each tensor at its own rate; see `fit`.

    Args:
        engine: Of the adapter; holds the trained one afterwards.
        adapter: To start from; it stays as it is.
        factors: By tensor.
        examples: Labelled texts.
        terms: How long and in what steps; `lr` is what factors multiply.
        seed: Seed of the order of the texts.

    Returns:
        What was trained, whose numbers are how far tensors went for a factor of 1, and the adapter
        that these make.
    """
    form = Rated(adapter, factors)
    zeros = {name: np.zeros_like(one) for name, one in adapter.items()}
    fitted = fit(engine, form, zeros, examples, terms, seed)
    return fitted, form.adapter(fitted.numbers)


def slopes_of(
    engine: Engine, moved: AdapterState, held_out: Sequence[Example], batch: int
) -> tuple[float, dict[str, float]]:
    """The mean loss on texts, and its gradient at each tensor's factor, to first order.

    Args:
        engine: It holds the trained adapter.
        moved: How far each tensor went for a factor of 1.
        held_out: Labelled texts that nothing was trained on.
        batch: Texts read at once.

    Raises:
        TrainingError: No texts.
    """
    if not held_out:
        raise TrainingError("no labelled texts are held out: learned rates need some to learn by")
    total, slopes = 0.0, dict.fromkeys(moved, 0.0)
    for one in _in_batches(engine, held_out, batch):
        share = len(one.labels) / len(held_out)
        loss, gradients = engine.gradients(one)
        total += share * loss
        for name, gradient in gradients.items():
            slopes[name] += share * float((gradient.astype(np.float64) * moved[name]).sum())
    return total, slopes


def learned(
    engine: Engine,
    rates: Rates,
    numbers: AdapterState,
    features: np.ndarray,
    adapter: AdapterState,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    terms: Terms,
    learning: Learning,
    seed: int,
) -> Learned:
    """A device's work of a round. Equal arguments give equal bytes.

    Args:
        engine: Of the adapter.
        rates: The net.
        numbers: Its numbers; they stay as they are.
        features: As `Ground.standard` gives them.
        adapter: That each training starts from.
        examples: Labelled texts to train on.
        held_out: Others, which tell how well it went.
        terms: Of each training.
        learning: Of the net.
        seed: Seed of the order of the texts.

    Raises:
        AdapterError: Numbers of another base or adapter.
        TrainingError: No texts of one sort, or the loss is no longer finite.
    """
    rates.check(numbers)
    own = {name: np.array(one, np.float32) for name, one in numbers.items()}
    net = AdamW({name: own[name] for name in own if name != OWN}, learning.lr, 0.0)
    tensors = AdamW({OWN: own[OWN]}, learning.own_lr, 0.0)
    losses = []
    for training in range(learning.trainings):
        factors = rates.factors(own, features)
        fitted, _ = rated_fit(
            engine, adapter, factors, examples, terms, derive_seed(seed, "rates", training)
        )
        loss, slopes = slopes_of(engine, fitted.numbers, held_out, terms.batch)
        losses.append(loss)
        pulled = rates.pull(own, features, slopes)
        tensors.step({OWN: pulled.pop(OWN)})
        net.step(pulled)
    return Learned(own, tuple(losses))


def _in_batches(engine: Engine, examples: Sequence[Example], batch: int) -> Iterator[Batch]:
    """Texts in their order, so many at once."""
    encoder = engine.encoder
    for start in range(0, len(examples), batch):
        some = examples[start : start + batch]
        yield encoder.batch(encoder.prompts(some), encoder.labels(some))


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
