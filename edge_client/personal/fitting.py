"""Training of a reparametrized adapter: gradients by an engine, chain rule and AdamW in numpy.

An engine knows only LoRA's A and B. A form, such as a factor for every rank, maps its own
parameters to an adapter and pulls the adapter's gradients back, so that one form in numpy serves
both engines:

    engine.put(form.adapter(numbers))
    loss, gradients = engine.gradients(batch)
    pulled = form.pull(numbers, gradients, num_examples)

    fitted = fit(engine, Bank(), numbers, examples, FitTerms(steps=10), seed)  # all of the loop
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.adapters.banks import LAMBDA, StackedAdapters
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.engine.trainer import epoch_batches, prompts_by_epoch
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import AdapterState


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
