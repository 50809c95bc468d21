"""How an adapter does on texts whose answers are known: labels, tags or masked words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.engine.engine import Engine
from edge_client.engine.scoring.entities import counted
from edge_client.engine.trainer import TrainingError
from edge_client.formats.tags import OUTSIDE
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.wire.reported.entities import Entities


@dataclass(frozen=True)
class Answers:
    """A text's answers: of each token that is masked, or of each word that is read.

    Attributes:
        losses: Cross-entropies in nats, (answers,).
        is_right: Whether the right answer is the likeliest, (answers,).
        tags: The right ones of all words, and those told; of tagging.
    """

    losses: np.ndarray
    is_right: np.ndarray
    tags: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


@dataclass(frozen=True)
class Evaluation:
    """How an adapter does.

    Attributes:
        num_examples: Answers asked for: of labels one of each text; masked tokens, or words tagged.
        accuracy: Share whose most probable answer is the right one.
        loss: Mean cross-entropy in nats; of `mlm` its exponential is the perplexity.
        mean_log_probabilities: Mean over the texts, per label; of labels alone.
        entities: How many were found; of tagging.
    """

    num_examples: int
    accuracy: float
    loss: float
    mean_log_probabilities: tuple[float, ...] = ()
    entities: Entities | None = None


def evaluate(engine: Engine, examples: Sequence[Example]) -> Evaluation:
    """Score the engine's adapter on texts with labels or tags, or on any texts by masked words.

    Which words are masked is the same in each evaluation of the same texts.

    Raises:
        TrainingError: No texts, or the loss is not finite.
    """
    if not examples:
        raise TrainingError("no labelled test texts to evaluate on")
    task = engine.encoder.task
    if task.kind == "labels":
        return _finite(_of_labels(engine, examples))
    return evaluation_of(task, answers_to(engine, examples))


def answers_to(engine: Engine, examples: Sequence[Example]) -> list[Answers]:
    """Each text's answers, of tagging and of masked words; which are masked hangs on its place."""
    if engine.encoder.task.kind == "mlm":
        return [Answers(*found) for found in engine.judge_each(examples)]
    return _of_tags(engine, examples)


def evaluation_of(task: Task, answers: Sequence[Answers]) -> Evaluation:
    """The score of some texts' answers.

    Raises:
        TrainingError: The loss is not finite.
    """
    losses = np.concatenate([one.losses for one in answers])
    is_right = np.concatenate([one.is_right for one in answers])
    is_tagging = task.kind == "tagging"
    entities = counted(task.labels, [one.tags for one in answers]) if is_tagging else None
    loss = float(losses.mean(dtype=np.float64))
    return _finite(Evaluation(len(losses), float(is_right.mean()), loss, entities=entities))


def _finite(found: Evaluation) -> Evaluation:
    if not math.isfinite(found.loss):
        raise TrainingError(f"the loss of the evaluation is {found.loss}; the adapter has diverged")
    return found


def _of_labels(engine: Engine, examples: Sequence[Example]) -> Evaluation:
    log_probabilities = engine.predict(examples)
    labels = np.array(engine.encoder.labels(examples))
    right = log_probabilities.argmax(axis=1) == labels
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    means = tuple(float(mean) for mean in log_probabilities.mean(axis=0, dtype=np.float64))
    return Evaluation(len(examples), float(right.mean()), float(loss), means)


def _of_tags(engine: Engine, examples: Sequence[Example]) -> list[Answers]:
    """Words that are not read, of texts that are too long, count as told to be outside."""
    task = engine.encoder.task
    index = {tag: number for number, tag in enumerate(task.tags)}
    found = []
    for example, rows in zip(examples, engine.tag(examples), strict=True):
        gold = np.array([index[tag] for tag in example.tags[: len(rows)]])
        told = rows.argmax(axis=1)
        unread = (OUTSIDE,) * (len(example.tags) - len(rows))
        tags = example.tags, (*(task.tags[tag] for tag in told.tolist()), *unread)
        found.append(Answers(-rows[np.arange(len(gold)), gold], told == gold, tags))
    return found
