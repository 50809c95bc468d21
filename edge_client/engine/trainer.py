"""One device's share of a round: a few epochs over its own texts, and the delta they made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.engine.engine import Engine
from edge_client.errors import Failed
from edge_client.metering.phases import phase
from edge_client.texts.examples import Example
from edge_client.texts.tokens import Prompt
from edge_client.wire.tensors import AdapterState
from edge_client.wire.training import Training

POOL = 8  # batches among which texts are sorted by length, so that little is padding


class TrainingError(Failed):
    """Training could not give a usable update."""


@dataclass(frozen=True)
class Trained:
    """What training gave.

    Attributes:
        delta: Trained minus received weights, float32.
        num_examples: Texts trained on, by their weights, rounded; at least 1.
        loss: Mean cross-entropy over the last epoch, in nats.
    """

    delta: AdapterState
    num_examples: int
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """How an adapter does on labelled texts.

    Attributes:
        num_examples: Texts evaluated.
        accuracy: Share whose most probable label is the right one.
        loss: Mean cross-entropy in nats.
        mean_log_probabilities: Mean over the texts, per label.
    """

    num_examples: int
    accuracy: float
    loss: float
    mean_log_probabilities: tuple[float, ...] = ()


def train(
    engine: Engine,
    examples: Sequence[Example],
    training: Training,
    seed: int,
    weights: Sequence[float] | None = None,
) -> Trained:
    """Train the engine's adapter from where it stands.

    Of an ensemble of P patterns, text i is asked by pattern (i + e) mod P in epoch e, from 0. Two
    calls from the same adapter with equal arguments give bitwise equal deltas.

    Args:
        engine: Holds the adapter to start from.
        examples: Labelled texts.
        training: Epochs and batch size.
        seed: Seed of the order of the texts.
        weights: Each text's weight in the loss; None: every one has 1.

    Raises:
        TrainingError: No texts, or the loss is no longer finite.
    """
    if not examples:
        raise TrainingError("no labelled texts to train on")
    before = engine.adapter()
    with phase("tokenize"):
        asked = [view.prompts(examples) for view in engine.encoder.views()]
    labels = engine.encoder.labels(examples)
    generator = np.random.Generator(np.random.PCG64(seed))
    loss = math.nan
    for epoch in range(training.epochs):
        prompts, total = in_turn(asked, epoch), 0.0
        lengths = [len(prompt.ids) for prompt in prompts]
        for chosen in epoch_batches(lengths, training.batch, generator):
            rows = [prompts[row] for row in chosen]
            weighed = None if weights is None else [weights[row] for row in chosen]
            known = [labels[row] for row in chosen]
            step = engine.train_step(engine.encoder.batch(rows, known, weighed))
            total += step.loss * step.num_examples
        loss = total / len(examples)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} with lr {training.lr}; lower the learning rate"
            )
    after = engine.adapter()
    num_examples = len(examples) if weights is None else max(1, round(sum(weights)))
    return Trained({name: after[name] - before[name] for name in before}, num_examples, loss)


def in_turn(asked: Sequence[Sequence[Prompt]], epoch: int) -> list[Prompt]:
    """Each text's prompt in an epoch: the patterns take turns over texts and epochs.

    After as many epochs as there are patterns every text was asked by each of them once.

    Args:
        asked: The prompts of all texts by each pattern.
        epoch: Number of the epoch, from 0.
    """
    texts = range(len(asked[0]))
    return [asked[(text + epoch) % len(asked)][text] for text in texts]


def epoch_batches(
    lengths: Sequence[int], batch: int, generator: np.random.Generator
) -> list[list[int]]:
    """Shuffle texts into batches of similar length; every index comes exactly once.

    Args:
        lengths: Tokens per text.
        batch: Texts per batch; the last of a pool may be smaller.
        generator: Draws the order.
    """
    order = generator.permutation(len(lengths)).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), batch * POOL):
        pool = sorted(order[start : start + batch * POOL], key=lambda row: lengths[row])
        batches += [pool[first : first + batch] for first in range(0, len(pool), batch)]
    return [batches[index] for index in generator.permutation(len(batches))]


def evaluate(engine: Engine, examples: Sequence[Example]) -> Evaluation:
    """Score the engine's adapter on labelled texts.

    Raises:
        TrainingError: No texts, or the loss is not finite.
    """
    if not examples:
        raise TrainingError("no labelled test texts to evaluate on")
    log_probabilities = engine.predict(examples)
    labels = np.array(engine.encoder.labels(examples))
    right = log_probabilities.argmax(axis=1) == labels
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    if not math.isfinite(loss):
        raise TrainingError(f"the loss of the evaluation is {loss}; the adapter has diverged")
    means = tuple(float(mean) for mean in log_probabilities.mean(axis=0, dtype=np.float64))
    return Evaluation(len(examples), float(right.mean()), float(loss), means)
