"""Which of a task's patterns asks best, by the labelled texts a device has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edge_client.engine.engine import Engine
from edge_client.engine.trainer import evaluate
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task

ENOUGH = 8  # texts below which a difference is chance


@dataclass(frozen=True)
class PatternScore:
    """How one pattern does alone.

    Attributes:
        pattern: As in the task.
        accuracy: Share whose most probable label is the right one.
        loss: Mean cross-entropy in nats.
    """

    pattern: str
    accuracy: float
    loss: float


def score_patterns(
    open_engine: Callable[[Task], Engine], task: Task, examples: Sequence[Example]
) -> list[PatternScore]:
    """Ask every pattern alone; the most accurate first, then the given order.

    Args:
        open_engine: Gives an engine for a task of one pattern; each is closed before the next.
        task: Whose patterns.
        examples: Labelled texts.

    Raises:
        TrainingError: No texts.
    """
    scores = []
    for pattern in task.patterns:
        engine = open_engine(replace(task, patterns=(pattern,), ensemble=False))
        try:
            score = evaluate(engine, examples)
        finally:
            engine.close()
        scores.append(PatternScore(pattern, score.accuracy, score.loss))
    return sorted(scores, key=lambda score: -score.accuracy)


def with_first(task: Task, pattern: str) -> Task:
    """The task with one of its patterns first, the others in their order behind it."""
    others = [other for other in task.patterns if other != pattern]
    return replace(task, patterns=(pattern, *others))
