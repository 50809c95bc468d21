"""One device's share of a round: a few epochs over its own texts, and the delta they made."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from edge_client.engine.engine import Engine
from edge_client.engine.tether import Tether
from edge_client.errors import Failed
from edge_client.guest.steps import Keeper, Place, Steps
from edge_client.guest.stopping import Ended
from edge_client.metering.phases import phase
from edge_client.texts.examples import Example
from edge_client.texts.tokens import Prompt
from edge_client.wire.messages import WireError
from edge_client.wire.tensors import AdapterState, sha256
from edge_client.wire.training import Training

log = logging.getLogger(__name__)

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
        earlier_forwards: Layer-forwards of earlier lives, in which it was left.
        steps: Optimizer steps, all lives together.
    """

    delta: AdapterState
    num_examples: int
    loss: float
    earlier_forwards: int = 0
    steps: int = 0


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


class NotKept:
    """The keeper of training that nobody leaves."""

    def found(self, bound: Mapping[str, str]) -> None:
        """Nothing."""

    def after_step(self, now: Callable[[], Steps]) -> None:
        """Go on."""

    def keep(self, steps: Steps) -> None:
        """Let it go."""


def train(
    engine: Engine,
    examples: Sequence[Example],
    training: Training,
    seed: int,
    weights: Sequence[float] | None = None,
    keeper: Keeper | None = None,
    shift: AdapterState | None = None,
) -> Trained:
    """Train the engine's adapter from where it stands.

    Of an ensemble of P patterns, text i is asked by pattern (i + e) mod P in epoch e, from 0. Two
    calls from the same adapter with equal arguments give bitwise equal deltas, and so does one that
    is left after any step and called again with a keeper that knows what was kept.

    Args:
        engine: Holds the adapter to start from.
        examples: Labelled texts.
        training: Epochs, batch size and the proximal term.
        seed: Seed of the order of the texts.
        weights: Each text's weight in the loss; None: every one has 1.
        keeper: Knows where this training was left, and says when it is to be; None: never.
        shift: Added to each gradient; None or empty: nothing.

    Raises:
        TrainingError: No texts, or the loss is no longer finite.
        Ended, Paused: The keeper wants to leave; it has kept what stands.
    """
    if not examples:
        raise TrainingError("no labelled texts to train on")
    before, keeper = engine.adapter(), keeper or NotKept()
    tether = Tether(before, training.proximal, shift or {})
    engine.hold(tether if tether.proximal or tether.shift else None)
    with phase("tokenize"):
        asked = [view.prompts(examples) for view in engine.encoder.views()]
    labels = engine.encoder.labels(examples)
    count = len(engine.encoder.task.labels)
    offsets = offsets_of(labels, weights, count) if training.adjusted else None
    place = _found(engine, keeper, before, bound_by(asked, labels, weights, training, seed))
    earlier, here_before = place.layer_forwards, engine.layer_forwards
    generator = np.random.Generator(np.random.PCG64(seed))
    loss, steps = math.nan, 0

    def now() -> Steps:
        """What stands between two steps."""
        forwards = earlier + engine.layer_forwards - here_before
        here = replace(place, layer_forwards=forwards)
        return Steps(here, engine.plan, engine.adapter(), engine.moments())

    for epoch in range(training.epochs):
        prompts = in_turn(asked, epoch)
        lengths = [len(prompt.ids) for prompt in prompts]
        batches = epoch_batches(lengths, training.batch, generator)
        steps += len(batches)
        if epoch < place.epoch:
            continue  # of an earlier life; its order was drawn, as it was then
        if epoch > place.epoch:
            place = Place(epoch)
        for chosen in batches[place.batches :]:
            rows = [prompts[row] for row in chosen]
            weighed = None if weights is None else [weights[row] for row in chosen]
            known = [labels[row] for row in chosen]
            try:
                batch = engine.encoder.batch(rows, known, weighed, offsets)
                step = engine.train_step(batch)
            except Ended:  # cut inside a step: the last whole one stands
                keeper.keep(now())
                raise
            loss_sum = place.loss_sum + step.loss * step.num_examples
            place = replace(place, batches=place.batches + 1, loss_sum=loss_sum)
            keeper.after_step(now)
        loss = place.loss_sum / len(examples)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} with lr {training.lr}; lower the learning rate"
            )
    after = engine.adapter()
    num_examples = len(examples) if weights is None else max(1, round(sum(weights)))
    delta = {name: after[name] - before[name] for name in before}
    return Trained(delta, num_examples, loss, earlier, steps)


def offsets_of(labels: Sequence[int], weights: Sequence[float] | None, count: int) -> np.ndarray:
    """What an adjusted loss adds to each label's logit: the logarithm of its share, float32.

    Each label counts one text more than there are, so that none has a share of zero. Law: a device
    that has as much of each label adds the same to all, which changes no loss.

    Args:
        labels: Index of each text's label.
        weights: Each text's weight; None: all have 1.
        count: How many labels there are.
    """
    held = np.bincount(labels, weights, minlength=count) + 1.0
    found: np.ndarray = np.log(held / held.sum()).astype(np.float32)
    return found


def bound_by(
    asked: Sequence[Sequence[Prompt]],
    labels: Sequence[int],
    weights: Sequence[float] | None,
    training: Training,
    seed: int,
) -> dict[str, str]:
    """What a training's bytes hang on beside engine and adapter: a hash each, no text."""
    prompts = [[(prompt.ids, prompt.mask_position) for prompt in view] for view in asked]
    parts = {"texts": (prompts, labels, weights), "training terms": training, "seed": seed}
    return {name: sha256(msgspec.json.encode(part)) for name, part in parts.items()}


def _found(engine: Engine, keeper: Keeper, before: AdapterState, bound: Mapping[str, str]) -> Place:
    """Put the engine where training was left; the place, which is the first where it was not."""
    steps = keeper.found(bound)
    if steps is None:
        return Place()
    with suppress(WireError):
        if engine.go_on(steps):
            log.info("going on with epoch %d after %d steps", *told(steps.place))
            return steps.place
    log.warning("what was kept of this training is of a plan that does not fit; it begins anew")
    engine.load_adapter(before)
    return Place()


def told(place: Place) -> tuple[int, int]:
    """Where training goes on, for people: the epoch from 1, and steps done in it."""
    return place.epoch + 1, place.batches


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
