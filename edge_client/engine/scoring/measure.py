"""The one figure by which adapters of a kind of task are compared.

Labels by accuracy; tags by the strict F1 of the entities that they tell, since most words are
outside; masked words by perplexity, which is less for the better one. A coordinator goes by the
accuracy of masked words instead: it sums up what others say, and a share, unlike a loss, has an
end; see `coordinator.rounds.measures`.
"""

import math
from typing import Literal

from edge_client.engine.scoring.evaluation import Evaluation
from edge_client.tables import share
from edge_client.texts.tasks import Kind
from edge_client.wire import figures
from edge_client.wire.reported.entities import scores_of

Measure = Literal["accuracy", "f1", "perplexity"]
MEASURES: dict[Kind, Measure] = {"labels": "accuracy", "tagging": "f1", "mlm": "perplexity"}
NAMES: dict[Measure, str] = {
    "accuracy": "accuracy",
    "f1": "F1 of entities",
    "perplexity": "perplexity",
}


def perplexity(loss: float) -> float:
    """As `wire.figures` has it, but that of the bound where there is none: figures are compared."""
    told = figures.perplexity(loss)
    return math.exp(figures.MOST_NATS) if told is None else told


def in_words(measure: Measure, score: float) -> str:
    """A figure for people, without its name."""
    return f"{score:.2f}" if measure == "perplexity" else share(score)


def measured(kind: Kind, found: Evaluation) -> float:
    """The figure; an F1 of 1 where no entity is there and none was told.

    Args:
        kind: Of the task.
        found: How an adapter does.
    """
    if kind == "mlm":
        return perplexity(found.loss)
    if kind == "labels" or found.entities is None:
        return found.accuracy
    f1 = scores_of(found.entities).strict
    return 1.0 if f1 is None else f1


def badness(kind: Kind, found: Evaluation) -> tuple[float, float]:
    """What the better adapter has less of: by its measure, and of equal ones by the loss."""
    figure = measured(kind, found)
    return figure if kind == "mlm" else -figure, found.loss


def is_better(kind: Kind, own: float, other: float) -> bool:
    """Whether one figure is truly better than another."""
    return own < other if kind == "mlm" else own > other
