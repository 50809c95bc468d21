"""Local training: a few epochs over a device's own texts, and the resulting delta."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.guest.process import Ended
from smidgen.edge_client.guest.steps import Keeper, ResumePoint, Steps
from smidgen.edge_client.metering.work import phase
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Prompt
from smidgen.edge_client.updates.states import local_correction
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed, sha256
from smidgen.edge_client.wire.training import Training

log = logging.getLogger(__name__)

POOL = 8  # batches among which texts are sorted by length, so that little is padding


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
    correct: Callable[[AdapterState], Correction | None] | None = None,
    received: AdapterState | None = None,
) -> Trained:
    """Train the engine's adapter from where it stands.

    Of an ensemble of P patterns, text i is asked by pattern (i + e) mod P in epoch e, from 0. Two
    calls from the same adapter with equal arguments give bitwise equal deltas, and so does one that
    is left after any step and called again with a keeper that knows what was kept.

    Args:
        engine: Holds the adapter to start from.
        examples: Labelled texts.
        training: Epochs, batch size and learning rate.
        seed: Seed of the order of the texts.
        weights: Each text's weight in the loss; None: every one has 1.
        keeper: Knows where this training was left, and says when it is to be; None: never.
        correct: Says what is added to each gradient, by the adapter that training starts from;
            None: FedProx's term alone, where `training` has it.
        received: What was loaded into the engine, where the caller holds it anyway; only read.

    Raises:
        TrainingError: No texts, or the loss is no longer finite.
        Ended, Paused: The keeper wants to leave; it has kept what stands.
    """
    if not examples:
        raise TrainingError("no labelled texts to train on")
    before = engine.adapter() if received is None else received
    keeper = keeper or NotKept()
    correction = correct(before) if correct else local_correction(before, training)
    engine.hold(correction)
    is_ruled = correction is not None and correction.rule is not None
    asked = prompts_by_epoch(engine.encoder, examples, seed)
    offsets = None
    if training.adjusted:
        labels, count = engine.encoder.labels(examples), len(engine.encoder.task.labels)
        offsets = offsets_of(labels, weights, count)
    prompts = asked(0)
    bound = bound_by(prompts, weights, training, seed)
    place = _found(engine, keeper, before, bound, training.epochs)
    earlier, here_before = place.layer_forwards, engine.layer_forwards
    generator = np.random.Generator(np.random.PCG64(seed))
    loss, steps = math.nan, 0

    def now() -> Steps:
        forwards = earlier + engine.layer_forwards - here_before
        return engine.steps(replace(place, layer_forwards=forwards))

    for epoch in range(training.epochs):
        prompts = asked(epoch) if epoch else prompts
        # Where each text counts by a rule of its own, batches are the same whatever texts say.
        lengths = [0 if is_ruled else len(prompt.ids) for prompt in prompts]
        batches = epoch_batches(lengths, training.batch, generator)
        steps += len(batches)
        if epoch < place.epoch:  # of an earlier life; its order was drawn, as it was then
            engine.on_texts(len(prompts))
            continue
        if epoch > place.epoch:
            place = ResumePoint(epoch)
        if place.batches:
            engine.on_texts(sum(map(len, batches[: place.batches])))
        for chosen in batches[place.batches :]:
            rows = [prompts[row] for row in chosen]
            weighed = None if weights is None else [weights[row] for row in chosen]
            try:
                batch = engine.encoder.batch(rows, weighed, offsets)
                loss = engine.train_step(batch)
            except Ended:  # cut inside a step: the last whole one stands
                keeper.keep(now())
                raise
            loss_sum = place.loss_sum + loss * len(batch.labels)
            place = replace(place, batches=place.batches + 1, loss_sum=loss_sum)
            keeper.after_step(now)
        loss = place.loss_sum / sum(len(prompt.places) for prompt in prompts)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} with lr {training.lr}; lower the learning rate"
            )
    engine.hold(None)
    after = engine.held()
    delta = {name: after[name] - before[name] for name in after}
    return Trained(delta, weight_of(len(examples), weights), loss, earlier, steps)


def weight_of(texts: int, weights: Sequence[float] | None) -> int:
    """What texts count for together, rounded; at least 1."""
    return texts if weights is None else max(1, round(sum(weights)))


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
    prompts: Sequence[Prompt], weights: Sequence[float] | None, training: Training, seed: int
) -> dict[str, str]:
    """What a training's bytes hang on beside engine and adapter: a hash each, no text.

    Args:
        prompts: Of the first epoch; those of others follow from its texts, the task and the seed.
        weights: Each text's.
        training: How it is trained.
        seed: Of the order of the texts.
    """
    asked = [(one.ids, one.places, one.answers, one.segments) for one in prompts]
    parts = {"texts": (asked, weights), "training terms": training, "seed": seed}
    return {name: sha256(msgspec.json.encode(part)) for name, part in parts.items()}


def _found(
    engine: Engine, keeper: Keeper, before: AdapterState, bound: Mapping[str, str], epochs: int
) -> ResumePoint:
    """Put the engine where training was left; the place, which is the first where it was not."""
    steps = keeper.found(bound)
    if steps is None:
        return ResumePoint()
    with suppress(WireError, OSError, ValueError):  # what is read of a file, only now
        if engine.go_on(steps):
            where = (steps.place.epoch + 1, epochs, steps.place.batches)
            log.info("going on with epoch %d of %d, after %d of its steps", *where)
            return steps.place
    log.warning("what was kept of this training is of a plan that does not fit; it begins anew")
    engine.load_adapter(before)
    return ResumePoint()


def prompts_by_epoch(
    encoder: Encoder, examples: Sequence[Example], seed: int
) -> Callable[[int], list[Prompt]]:
    """How each text is asked in an epoch, numbered from 0.

    The patterns of an ensemble take turns, see `in_turn`; which words are masked is drawn anew for
    each epoch. Any epoch can be asked for without those before; texts are tokenized once for all.
    """
    with phase("tokenize"):
        drawn = [view.by_draw(examples) for view in encoder.views()]
    if kind_of(encoder.task).is_drawn:
        return lambda epoch: _masked_in(drawn[0], derive_seed(seed, "masks", epoch))
    asked = [prompts(0) for prompts in drawn]
    return lambda epoch: in_turn(asked, epoch)


def _masked_in(drawn: Callable[[int], list[Prompt]], draw: int) -> list[Prompt]:
    with phase("tokenize"):
        return drawn(draw)


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
