"""FedL2P: learning rates for each tensor of a device's adapter, predicted from its texts.

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

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from smidgen.edge_client.adapters.banks import OWN, RatesNet
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.personal.fitting import Fitted, FitTerms, Form, fit
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.seeds import derive_seed
from smidgen.edge_client.wire.tensors import AdapterState

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
