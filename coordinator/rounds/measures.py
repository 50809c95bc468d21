"""What runs go by: the one share that is scored, waited for and gone back by.

A kind of task says what that share is (`edge_client.tasks.scores.Measure`): `ratio_of` tells what a
device's answer counts of it.

Masked words are scored by accuracy here and by perplexity on a device: many devices' shares have an
end and an error, so none that lies moves them far, while a device that compares adapters on its own
texts believes itself, and a loss tells smaller differences apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.rounds.events import Answered
from edge_client.tasks.counts import Entities
from edge_client.tasks.kind import every_kind, kind_of
from edge_client.tasks.scores import Measure
from edge_client.tasks.task import Task
from edge_client.wire.messages import Report


def measures_of(kinds: Iterable[str]) -> list[Measure]:
    """Those of runs that stand in one table, each kind's once, in a fixed order."""
    there = set(kinds)
    known = every_kind()
    return [one.measure for one in known if one.name in there] or [known[0].measure]


def heads_of(measures: Sequence[Measure]) -> str:
    """What a column of scores is called: `accuracy`, `F1`, or both where runs differ."""
    return " or ".join(dict.fromkeys(measure.word for measure in measures))


def ratio_of(answer: Answered) -> tuple[int, int]:
    """Right and asked of a device's evaluation, whose quotient is its own score.

    Of tagging those of F1, not of words: nearly all words are outside of any entity.
    """
    if answer.entities is not None:
        return ratio_of_entities(answer.entities)
    return answer.right or 0, answer.num_examples


def ratio_of_entities(entities: Entities) -> tuple[int, int]:
    """The two sides of strict F1 over all types: 2 right, and there + found."""
    return 2 * sum(entities.strict), sum(entities.there) + sum(entities.found)


def judged(answer: Answered, report: Report, task: Task) -> Answered:
    """An answer to an evaluation, with what the run goes by; as it is where no text was asked.

    Args:
        answer: As it is known so far.
        report: What the device said, checked (`admission.check_report`).
        task: The run's.
    """
    if report.accuracy is None:
        return answer
    loss = report.loss if kind_of(task).measure.hears_loss else None
    return replace(
        answer,
        right=round(report.accuracy * report.num_examples),
        mean_log_probabilities=report.mean_log_probabilities,
        entities=report.entities,
        loss=loss,
    )
