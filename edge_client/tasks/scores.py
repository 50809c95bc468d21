"""Answers and their scores: counts that add up over devices, and how both are shown and written."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO, TypeAlias, TypeVar

import numpy as np

from smidgen.edge_client.errors import Failed
from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.formats.source import DataError, Reason, find
from smidgen.edge_client.tables import share
from smidgen.edge_client.tasks.counts import Confusion, Entities, EntityScores, LabelScores
from smidgen.edge_client.texts.accounting import Accounting, Fault, value_of
from smidgen.edge_client.texts.examples import Example, Found, leave_out

Told = TypeVar("Told")
PIECE_TEXTS, PIECE_CHARACTERS = 256, 1 << 20  # answered at once


class Skipped(NamedTuple):
    """A row without an answer, which has a row of its own among the answers all the same.

    Attributes:
        id: What its `id` column says, or empty.
        reason: Why it was left out.
    """

    id: str
    reason: Reason

    def as_json(self, *empty: str) -> dict[str, Any]:
        """A row whose answer is null, by the names of what an answer has."""
        own = {"id": self.id} if self.id else {}
        return {**dict.fromkeys(empty), **own, "left_out": self.reason}


def skipped(found: Found) -> Skipped:
    """What stands in a row's place; one with a text lacks what the task asks for beside it."""
    reason = found.reason if found.example is None else "columns"
    return Skipped(found.id or value_of(found.row, find(list(found.row), "id")), reason)


class Formatter(Protocol[Told]):
    """How `client predict` reads texts and tells of them."""

    @property
    def done(self) -> str:
        """What was done with the texts, in a word."""

    def check(self, out: Path | None) -> None:
        """Refuse a file of answers that cannot be written.

        Raises:
            OutputError: Another ending, somebody's own file, or a place that cannot be written to.
        """

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Told]:
        """One of each text, in order; the other rows are counted in `accounting`."""

    def results(
        self, out: Path | None, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Told | Skipped], None]]:
        """Writes each answer, or row without one, to a file; without a file, nothing."""

    @property
    def can_propose(self) -> bool:
        """Whether its answers can be corrected in an annotation tool."""

    def proposal(self, answer: Told) -> Proposal:
        """For an annotation tool, where it can be corrected."""

    def line(self, answer: Told) -> str:
        """For a screen."""

    def counted(self, answer: Told) -> Sequence[str]:
        """What is counted of it."""

    def collected(self, kept: Sequence[Told]) -> dict[str, Any]:
        """All of them as JSON."""

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Beside the number of texts, where the answers are in a file."""


def write_json(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


Wrong: TypeAlias = Callable[[Example], "Fault | None"]


def _usable(
    texts: Iterable[Found], accounting: Accounting, needs_pairs: bool, wrong: Wrong
) -> Iterator[tuple[Found, Example]]:
    for found in texts:
        if found.example and (fault := wrong(found.example)):
            found = replace(found, example=None, fault=fault.said, reason=fault.reason)
        if found.example and needs_pairs and not found.example.text_b:
            said = "no text_b, which the task's patterns ask for"
            found = replace(found, example=None, fault=said, reason="columns")
        if found.example is None:
            accounting.lines.append(found.line)
            leave_out(accounting, found)
        else:
            accounting.read += 1
            yield found, found.example


def pieces(
    texts: Iterable[Found],
    accounting: Accounting,
    needs_pairs: bool = False,
    wrong: Wrong = lambda example: None,
) -> Iterator[list[tuple[Found, Example]]]:
    """Texts that can be asked, as many at once as are read; the others are counted."""
    piece: list[tuple[Found, Example]] = []
    room = PIECE_CHARACTERS
    for found, example in _usable(texts, accounting, needs_pairs, wrong):
        piece.append((found, example))
        room -= len(example.text) + len(example.text_b)
        if len(piece) == PIECE_TEXTS or room <= 0:
            yield piece
            piece, room = [], PIECE_CHARACTERS
    if piece:
        yield piece


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
