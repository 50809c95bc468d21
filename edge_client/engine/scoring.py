"""Scores an adapter on texts with known answers."""

from collections.abc import Sequence

from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import Evaluation, TextAnswers, TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example


def evaluate(engine: Engine, examples: Sequence[Example]) -> Evaluation:
    """Score the engine's adapter on texts whose answers are known.

    Which words are masked, where some are, is the same in each evaluation of the same texts.

    Raises:
        TrainingError: No texts, or the loss is not finite.
    """
    if not examples:
        raise TrainingError("no labelled test texts to evaluate on")
    return evaluation_of(engine.encoder.task, answers_to(engine, examples))


def answers_to(engine: Engine, examples: Sequence[Example]) -> list[TextAnswers]:
    return kind_of(engine.encoder.task).answers(engine, examples)


def evaluation_of(task: Task, answers: Sequence[TextAnswers]) -> Evaluation:
    """The score of some texts' answers.

    Raises:
        TrainingError: The loss is not finite.
    """
    return kind_of(task).score(task, answers)


def measured(task: Task, score: Evaluation) -> float:
    """A device's own figure."""
    return kind_of(task).figure(score)


def badness(task: Task, score: Evaluation) -> tuple[float, float]:
    """What the better adapter has less of: by its measure, and of equal ones by the loss."""
    figure, measure = measured(task, score), kind_of(task).measure
    return -figure if measure.higher_is_better else figure, score.loss
