"""Training of a reparametrized adapter, and of FedL2P's net of learning rates; in numpy.

Gradients are an engine's; chain rule and AdamW are here.

An engine knows only LoRA's A and B. A form, such as a factor for every rank, maps its own
parameters to an adapter and pulls the adapter's gradients back, so that one form in numpy serves
both engines:

    engine.put(form.adapter(numbers))
    loss, gradients = engine.gradients(batch)
    pulled = form.pull(numbers, gradients, num_examples)

    fitted = fit(engine, Bank(), numbers, examples, FitTerms(steps=10), seed)  # all of the loop

FedL2P: learning rates for each tensor of a device's adapter, predicted from its texts.

Lee et al. 2023 (arXiv:2310.02420), as FedP2EFT compares with it: from the features of the device's
texts a net gives a factor for each tensor, on top of one learned for the tensor itself. Both start
at 1, which is plain training. The net's weights are sent and averaged as an adapter's are.

    features -> linear (100) -> ReLU -> linear (100) -> ReLU -> linear -> factor
    learning rate of a tensor = lr * own factor * factor

The net descends the loss on held-out texts after training. The exact gradient leads back through
all steps and takes second derivatives, which no engine gives. So AdamW's directions count as
constants (first order): a rate's gradient is that of the final loss times how far the tensor moved
per unit of rate. This is exact for a single step. On a tiny base (2 layers, width 16, four texts)
its cosine with the whole gradient by differences was 1.00 after 3 steps at a rate of 0.01 and 0.99
after 10, but 0.56 after 10 at 0.05 and -0.38 after 30 at 0.01: keep trainings short. FedP2EFT's own
code instead takes three terms of the Neumann series for the inverse of second derivatives.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.adapters.banks import LAMBDA, OWN, RatesNet, StackedAdapters
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.engine.trainer import epoch_batches, prompts_by_epoch
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed


class Form:
    """A way to write an adapter, float32 by name as adapters are; as it stands it is plain LoRA."""

    def adapter(self, numbers: AdapterState) -> AdapterState:
        """What the engine computes with."""
        return numbers

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        """Gradients of the numbers: the chain rule, and what the form itself asks of them.

        Args:
            numbers: Where they stand.
            gradients: Of the adapter, as `Engine.gradients` gives them.
            num_examples: Texts trained on, all batches together.
        """
        return gradients

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """Called after each step, counted from 1, of so many; may change numbers in place."""


class Above(Form):
    """Another form's adapter above a shared one, which stays as it is.

    Law: pulled gradients are those that the other form has of its own part alone.

    Args:
        form: Of one's own.
        stack: Joins the two.
        shared: The shared adapter. Where there are several, it changes while one's own is trained:
            each but the last lies below for an equal part of the steps, and the last in the end.
    """

    def __init__(self, form: Form, stack: StackedAdapters, shared: Sequence[AdapterState]) -> None:
        self._form, self._stack, self._shared, self._at = form, stack, shared, 0

    def adapter(self, numbers: AdapterState) -> AdapterState:
        return self._stack.joined(self._form.adapter(numbers), self._shared[self._at])

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        return self._form.pull(numbers, self._stack.own(gradients), num_examples)

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """See `Form`; and what lies below is the one whose turn comes."""
        self._form.settle(numbers, step, steps)
        self._at = step * (len(self._shared) - 1) // steps


@dataclass(frozen=True)
class FitTerms:
    """How a form's numbers are trained.

    Attributes:
        steps: Optimizer steps; 0: as many as the epochs have.
        epochs: Passes over the texts, where no steps are said.
        batch: Texts per step.
        lr: Learning rate of A, B and a head.
        scale_lr: Of the numbers that scale ranks.
        weight_decay: Decoupled, of all but those.

    Raises:
        WrongInput: A value outside its range; names it.
    """

    steps: int = 0
    epochs: int = 1
    batch: int = 8
    lr: float = 1e-4
    scale_lr: float = 1e-2
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        demand(0 <= self.steps <= 1_000_000, "steps: 0 to 1000000")
        demand(0 <= self.epochs <= 10_000, "epochs: 0 to 10000")
        demand(1 <= self.batch <= 4096, "batch: 1 to 4096")
        for name in ("lr", "scale_lr"):
            demand(0.0 < getattr(self, name) <= 100.0, f"{name}: above 0, at most 100")
        demand(0.0 <= self.weight_decay <= 1.0, "weight_decay: 0 to 1")


@dataclass(frozen=True)
class Fitted:
    """What training by a form gave.

    Attributes:
        numbers: After it.
        loss: Mean cross-entropy of the last pass's batches, in nats, before their steps; NaN
            without a step.
        steps: That were made.
        num_examples: Texts that it was trained on.
    """

    numbers: AdapterState
    loss: float
    steps: int
    num_examples: int


def fit(
    engine: Engine,
    form: Form,
    numbers: AdapterState,
    examples: Sequence[Example],
    terms: FitTerms,
    seed: int,
    frozen: Collection[str] = (),
) -> Fitted:
    """Train numbers on a device's texts; the engine then holds the adapter that they make.

    Equal arguments give equal bytes. Beside the engine it takes at most 24 bytes for each number:
    themselves, two gradients, two moments and the adapter that they make. The engine's optimizer
    takes no part.

    Args:
        engine: Of the adapter that the form makes.
        form: What the numbers are.
        numbers: To start from; they stay as they are.
        examples: Labelled texts.
        terms: How long, in what steps, how far.
        seed: Seed of the order of the texts.
        frozen: Names of numbers that are not trained.

    Raises:
        TrainingError: No texts, or the loss is no longer finite.
    """
    if not examples:
        raise TrainingError("no labelled texts to train on")
    own = {name: np.array(one, np.float32) for name, one in numbers.items()}
    trained = own.keys() - frozenset(frozen)
    scales = frozenset(name for name in trained if name.endswith(LAMBDA))
    optimizers = {
        names: AdamW({name: own[name] for name in own if name in names}, lr, decay)
        for names, lr, decay in (
            (scales, terms.scale_lr, 0.0),
            (frozenset(trained - scales), terms.lr, terms.weight_decay),
        )
    }
    passes = max(1, math.ceil(len(examples) / terms.batch))  # batches of one pass
    steps = terms.steps or terms.epochs * passes
    losses: list[float] = []
    for step, batch in zip(
        range(1, steps + 1), _batches(engine, examples, terms, seed), strict=False
    ):
        engine.put(form.adapter(own))
        loss, gradients = engine.gradients(batch)
        if not math.isfinite(loss):
            raise TrainingError(f"the loss is {loss} with lr {terms.lr}; lower the learning rate")
        losses.append(loss)
        pulled = form.pull(own, gradients, len(examples))
        for names, optimizer in optimizers.items():
            optimizer.step({name: pulled[name] for name in own if name in names})
        form.settle(own, step, steps)
    engine.put(form.adapter(own))
    last = losses[-passes:]
    loss = math.fsum(last) / len(last) if last else math.nan
    return Fitted(own, loss, len(losses), len(examples))


def _batches(
    engine: Engine, examples: Sequence[Example], terms: FitTerms, seed: int
) -> Iterator[Batch]:
    """Batches for ever, in passes, each in an order of its own."""
    encoder = engine.encoder
    asked, epoch = prompts_by_epoch(encoder, examples, seed), 0
    generator = np.random.Generator(np.random.PCG64(seed))
    while True:
        prompts = asked(epoch)
        lengths = [len(prompt.ids) for prompt in prompts]
        for rows in epoch_batches(lengths, terms.batch, generator):
            yield encoder.batch([prompts[row] for row in rows])
        epoch += 1


LEARNING = FitTerms(steps=3, lr=1e-4, scale_lr=1e-2)  # FedP2EFT's setting


class Rated(Form):
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


def rated_fit(
    engine: Engine,
    adapter: AdapterState,
    factors: Mapping[str, float],
    examples: Sequence[Example],
    terms: FitTerms,
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
    rates: RatesNet,
    numbers: AdapterState,
    features: np.ndarray,
    adapter: AdapterState,
    examples: Sequence[Example],
    held_out: Sequence[Example],
    terms: FitTerms,
    seed: int,
    learning: FitTerms = LEARNING,
) -> tuple[AdapterState, list[float]]:
    """A device's work of a round. Equal arguments give equal bytes.

    Args:
        engine: Of the adapter.
        rates: The net.
        numbers: Its numbers; they stay as they are.
        features: As `features_of` gives them.
        adapter: That each training starts from.
        examples: Labelled texts to train on.
        held_out: Others, which tell how well it went.
        terms: Of each training.
        seed: Seed of the order of the texts.
        learning: Of the net, by Adam: a step after each of `steps` trainings; `scale_lr` is that of
            the tensors' own factors.

    Returns:
        The net's numbers, all that may leave the device; and the losses on the held-out texts, in
        nats, after each training and before the net's step.

    Raises:
        AdapterError: Numbers of another base or adapter.
        TrainingError: No texts of one sort, or the loss is no longer finite.
    """
    rates.check(numbers)
    own = {name: np.array(one, np.float32) for name, one in numbers.items()}
    net = AdamW({name: own[name] for name in own if name != OWN}, learning.lr, 0.0)
    tensors = AdamW({OWN: own[OWN]}, learning.scale_lr, 0.0)
    losses = []
    for training in range(learning.steps):
        factors = rates.factors(own, features)
        fitted, _ = rated_fit(
            engine, adapter, factors, examples, terms, derive_seed(seed, "rates", training)
        )
        loss, slopes = slopes_of(engine, fitted.numbers, held_out, terms.batch)
        losses.append(loss)
        pulled = rates.pull(own, features, slopes)
        tensors.step({OWN: pulled.pop(OWN)})
        net.step(pulled)
    return own, losses


def _in_batches(engine: Engine, examples: Sequence[Example], batch: int) -> Iterator[Batch]:
    encoder = engine.encoder
    for start in range(0, len(examples), batch):
        yield encoder.batch(encoder.prompts(examples[start : start + batch]))
