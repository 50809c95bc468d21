"""What runs of each kind of task go by: the one share that is scored, waited for and gone back by.

Everything that tells labels, tagging and masked words apart, but for what each of them is asked,
looks here: `ratio_of` for what a device's answer counts, `MEASURES` for how people call it.

Masked words are scored by accuracy here and by perplexity on a device (`engine.scoring.measure`):
many devices' shares have an end and an error, so none that lies moves them far, while a device that
compares adapters on its own texts believes itself, and a loss tells smaller differences apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coordinator.rounds.events import Answered
from edge_client.texts.tasks import Kind, Task
from edge_client.wire.messages import Report
from edge_client.wire.reported.entities import Entities


@dataclass(frozen=True)
class Measure:
    """What a kind of task is judged by.

    Attributes:
        key: What its figures are called in JSON.
        word: The same for people.
        said: What an adapter did, for people; `{}` stands for the share.
        asked: What the share is of, for people.
        note: What `word` is, for people.
        hears_loss: Whether the loss of an evaluation counts beside it (`scoring.is_collapsed`).
        has_perplexity: Whether people are told that loss, as perplexity.
    """

    key: Literal["accuracy", "f1"]
    word: str
    said: str
    asked: str
    note: str
    hears_loss: bool = True
    has_perplexity: bool = False


MEASURES: dict[Kind, Measure] = {
    "labels": Measure(
        "accuracy",
        "accuracy",
        "{} of the devices' texts were answered right",
        "texts",
        "accuracy: over the devices' test texts that were asked",
        hears_loss=False,
    ),
    "tagging": Measure(
        "f1",
        "F1",
        "the F1 of the devices' entities was {}",
        "entities",
        "F1: of entities, words and type right, over the devices' test texts that were asked",
    ),
    "mlm": Measure(
        "accuracy",
        "accuracy",
        "{} of the devices' masked words were guessed right",
        "masked words",
        "accuracy, perplexity: of masked words, over the devices' test texts that were asked",
        has_perplexity=True,
    ),
}


def measures_of(kinds: Iterable[Kind]) -> list[Measure]:
    """Those of runs that stand in one table, each kind's once, in a fixed order."""
    there = set(kinds) or {"labels"}
    return [measure for kind, measure in MEASURES.items() if kind in there]


def heads_of(measures: Sequence[Measure]) -> str:
    """What a column of scores is called: `accuracy`, `F1`, or both where runs differ."""
    return " or ".join(dict.fromkeys(measure.word for measure in measures))


def chance_of(kind: Kind, labels: Sequence[str]) -> float:
    """The score of guessing: one label of all; of entities and of words next to nothing."""
    return 1 / max(1, len(labels)) if kind == "labels" else 0.0


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
    loss = report.loss if MEASURES[task.kind].hears_loss else None
    return replace(
        answer,
        right=round(report.accuracy * report.num_examples),
        mean_log_probabilities=report.mean_log_probabilities,
        entities=report.entities,
        loss=loss,
    )
