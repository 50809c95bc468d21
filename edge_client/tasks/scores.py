"""Evaluation scores: counts that add up over devices, and how they are shown."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.errors import Failed
from smidgen.edge_client.formats.opened import DataError
from smidgen.edge_client.tables import share
from smidgen.edge_client.tasks.counts import Confusion, Entities, EntityScores, LabelScores
from smidgen.edge_client.texts.accounting import Accounting

MOST_NATS = 700.0  # whose exponential float64 still holds; everywhere the bound of perplexity


class TrainingError(Failed):
    """Training or evaluation could not give a usable result."""


@dataclass(frozen=True)
class Measure:
    """The figure by which adapters for a kind of task are compared.

    Attributes:
        key: What a coordinator calls its share in JSON: `accuracy`, of right answers, or `f1`.
        word: The same for people.
        said: What an adapter did, for people; `{}` stands for the share.
        asked: What the share is of, for people.
        note: What `word` is, for people.
        chance: The share of guessing, by the task's labels.
        hears_loss: Whether a coordinator hears the loss of an evaluation too, which tells an
            adapter that has collapsed where the share of guessing is next to nothing.
        own: What a device compares adapters by on its own texts: `key`, or `perplexity`.
        name: The same for people.
        cells: What a share of right answers is of in tables, where that is not the measure.
        beside: What it is called on a model card then.
    """

    key: str
    word: str
    said: str
    asked: str
    note: str
    chance: Callable[[Sequence[str]], float] = lambda labels: 0.0
    hears_loss: bool = True
    own: str = ""
    name: str = ""
    cells: str = ""
    beside: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether devices report counts by label, whose F1 it is, and not right answers alone."""
        return self.key == "f1"

    @property
    def has_perplexity(self) -> bool:
        return self.own == "perplexity"

    @property
    def higher_is_better(self) -> bool:
        """Whether the better one of two adapters has more of a device's own figure."""
        return not self.has_perplexity

    @property
    def own_key(self) -> str:
        """What a device's own figure is called in JSON."""
        return self.own or self.key

    def is_better(self, own: float, other: float) -> bool:
        """Whether one figure of a device is truly better than another."""
        return own > other if self.higher_is_better else own < other

    def in_words(self, figure: float) -> str:
        return share(figure) if self.higher_is_better else f"{figure:.2f}"


@dataclass(frozen=True)
class TextAnswers:
    """A text's answers: one of a text, or of each token that is masked, or of each word.

    Attributes:
        losses: Cross-entropies in nats, (answers,).
        is_right: Whether the right answer is the likeliest, (answers,).
        log_probabilities: Of each label, (labels,), where one of them is asked for; else empty.
        tags: The right tags of all words, and those told, where words have tags.
        counts: Of each label whether the text has it, and whether it was told, (2, labels), where
            a text may have several.
    """

    losses: np.ndarray
    is_right: np.ndarray
    log_probabilities: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    tags: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    counts: np.ndarray | None = None


@dataclass(frozen=True)
class Evaluation:
    """How an adapter does on texts; what a device reports, and a coordinator adds up.

    Attributes:
        num_examples: Answers asked for: one of each text, or its masked tokens, or its words.
        accuracy: Share whose most probable answer is the right one.
        loss: Mean cross-entropy in nats.
        mean_log_probabilities: Mean over the texts, by label; where one of them is asked for.
        entities: Counts of what is there, what was told and what was right, by label, where the
            measure is their F1.
    """

    num_examples: int
    accuracy: float
    loss: float
    mean_log_probabilities: tuple[float, ...] = ()
    entities: Entities | None = None


def evaluation_of(answers: Sequence[TextAnswers], entities: Entities | None = None) -> Evaluation:
    """The score of some texts' answers.

    Raises:
        TrainingError: The loss is not finite.
    """
    losses = np.concatenate([one.losses for one in answers])
    is_right = np.concatenate([one.is_right for one in answers])
    loss = float(losses.mean(dtype=np.float64))
    return finite(Evaluation(len(losses), float(is_right.mean()), loss, entities=entities))


def finite(score: Evaluation) -> Evaluation:
    """The same score.

    Raises:
        TrainingError: Its loss is not finite.
    """
    if not math.isfinite(score.loss):
        raise TrainingError(f"the loss of the evaluation is {score.loss}; the adapter has diverged")
    return score


def perplexity(loss: float | None) -> float | None:
    """exp of a mean cross-entropy in nats; None where there is none, or no number holds it."""
    return None if loss is None or loss > MOST_NATS else math.exp(loss)


def bounded_perplexity(loss: float) -> float:
    """The same, but that of the bound where no number holds it: figures are compared."""
    return math.exp(min(loss, MOST_NATS)) if loss == loss else math.exp(MOST_NATS)


@dataclass(frozen=True)
class LanguageScores:
    """How masked words of one language are guessed.

    Attributes:
        language: As the file names it; empty where it names none.
        texts: Texts scored.
        answers: Tokens that were masked.
        accuracy: Share of them that were guessed.
        perplexity: Exponential of their mean cross-entropy.
    """

    language: str
    texts: int
    answers: int
    accuracy: float
    perplexity: float


@dataclass(frozen=True)
class Scores:
    """How an adapter reads texts whose answers are known.

    Attributes:
        accuracy: Share of right answers, 0 to 1: of texts read as what they are, of words with
            their tags, or of masked tokens.
        loss: Mean cross-entropy of the answers in nats.
        texts: Texts scored.
        left_out: Numbers of the rows that gave no text.
        labels: Count, precision, recall and F1 of each label, in label order; of tagging those of
            each type's entities, where words and type are right. Of masked words there are none.
        confusion: Counts of texts by label and by what they are read as; of tagging of words, by
            their tags. Without rows of masked words, and where a text may have several labels.
        data: The file they are from.
        notes: How the file was read, and why rows were left out, in words without a text.
        rows: Rows of the file, those that were read, and those left out by reason.
        answers: Answers that were asked for: as many as texts, or words, or masked tokens.
        entities: F1 of the entities that were found, or of the labels where a text may have
            several; else None.
        languages: Of masked words, language by language, where the file names any.
        kind: The kind of task, by its name.
        exact: Share of texts of which every word that is asked for is guessed; where words are.
    """

    accuracy: float
    loss: float
    texts: int
    left_out: tuple[int, ...]
    labels: tuple[LabelScores, ...] = field(repr=False)
    confusion: Confusion = field(repr=False)
    data: Path = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)
    rows: Mapping[str, object] = field(default_factory=dict, repr=False)
    answers: int = 0
    entities: EntityScores | None = None
    languages: tuple[LanguageScores, ...] = field(default=(), repr=False)
    kind: str = field(default="", repr=False)
    exact: float | None = field(default=None, repr=False)

    @property
    def perplexity(self) -> float:
        """The loss's exponential; what masked words are scored by."""
        return bounded_perplexity(self.loss)


def check_any(texts: Sequence[Any], what: str, accounting: Accounting) -> None:
    """Refuse to score nothing.

    Raises:
        DataError: There is no text.
    """
    if not texts:
        told = f"; {accounting}" if accounting.left_out else ""
        raise DataError(f"there is no {what} to score on{told}")


def scores_from(
    losses: Sequence[float], texts: int, table: Confusion, labels: tuple[LabelScores, ...]
) -> Scores:
    """Scores by a table of counts; who calls knows the file."""
    return Scores(
        accuracy=table.accuracy or 0.0,
        loss=math.fsum(losses) / len(losses),
        texts=texts,
        left_out=(),
        labels=labels,
        confusion=table,
        data=Path(),
        notes=(),
        answers=len(losses),
    )
