"""How an adapter reads texts whose answers are known, by the measures of its kind of task."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.api.labeller import Answer, Labeller, answers, pieces
from edge_client.api.tagger import Tagging, taggings
from edge_client.engine.scoring.confusion import Confusion, LabelScores
from edge_client.engine.scoring.entities import counted, type_scores
from edge_client.engine.scoring.measure import perplexity
from edge_client.formats.opened import DataError
from edge_client.texts.accounting import Accounting
from edge_client.texts.examples import Found
from edge_client.wire.reported.entities import EntityScores, scores_of

OnAnswer = Callable[[Answer | Tagging], None]


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
            their tags. Without rows of masked words.
        data: The file they are from.
        notes: How the file was read, and why rows were left out, in words without a text.
        rows: Rows of the file, those that were read, and those left out by reason.
        answers: Answers that were asked for: as many as texts, or words, or masked tokens.
        entities: F1 of the entities that were found; of tagging, else None.
        languages: Of masked words, language by language, where the file names any.
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

    @property
    def perplexity(self) -> float:
        """The loss's exponential; what masked words are scored by."""
        return perplexity(self.loss)


def score_labels(
    labeller: Labeller, texts: Iterable[Found], accounting: Accounting, on_answer: OnAnswer
) -> Scores:
    """Label texts and compare.

    Args:
        labeller: The adapter.
        texts: With labels.
        accounting: Gets those without a text.
        on_answer: Told each answer.

    Raises:
        DataError: There is no text that can be used.
    """
    task, gold, read, losses = labeller.task, list[int](), list[int](), list[float]()
    index = {label: number for number, label in enumerate(task.labels)}
    for answer in answers(labeller, texts, accounting):
        gold.append(index[answer.example.label or ""])
        read.append(answer.index)
        losses.append(-float(answer.log_probabilities[gold[-1]]))
        on_answer(answer)
    _check_any(gold, "labelled text", accounting)
    table = Confusion.of(task.labels, gold, read)
    return _scores(losses, len(gold), table, tuple(table.scores()))


def score_tags(
    labeller: Labeller, texts: Iterable[Found], accounting: Accounting, on_answer: OnAnswer
) -> Scores:
    """As `score_labels`, of words; all words of a text are read, in windows if it is long."""
    task, gold, read, losses = labeller.task, list[int](), list[int](), list[float]()
    index = {tag: number for number, tag in enumerate(task.tags)}
    pairs = []
    for answer in taggings(labeller, texts, accounting):
        tags = [index[tag] for tag in answer.example.tags]
        losses += (-answer.rows[np.arange(len(tags)), tags]).tolist()
        gold += tags
        read += answer.rows.argmax(axis=1).tolist()
        pairs.append((answer.example.tags, answer.told(task)))
        on_answer(answer)
    _check_any(gold, "tagged text", accounting)
    found = counted(task.labels, pairs)
    table, types = Confusion.of(task.tags, gold, read), type_scores(task.labels, found)
    return replace(_scores(losses, len(pairs), table, types), entities=scores_of(found))


def score_masked(labeller: Labeller, texts: Iterable[Found], accounting: Accounting) -> Scores:
    """As `score_labels`, of masked words; all texts at once, as where a device evaluates."""
    every = pieces(labeller, texts, accounting)
    examples = [example for piece in every for _, example in piece]
    _check_any(examples, "text", accounting)
    engine = labeller.engine
    losses, is_right = engine.judge(examples)
    of = np.repeat(
        np.arange(len(examples)),
        [len(prompt.places) for prompt in engine.encoder.prompts(examples)],
    )
    scores = _scores(losses.tolist(), len(examples), Confusion.of((), (), ()), ())
    return replace(
        scores,
        accuracy=float(is_right.mean()),
        languages=_languages([one.language for one in examples], of, losses, is_right),
    )


def _languages(
    named: Sequence[str], of: np.ndarray, losses: np.ndarray, is_right: np.ndarray
) -> tuple[LanguageScores, ...]:
    """Figures language by language; none where no text names one.

    Args:
        named: Each text's language.
        of: Of which text each answer is.
        losses: Each answer's.
        is_right: Likewise.
    """
    found = []
    for language in sorted(set(named)) if any(named) else []:
        texts = [row for row, one in enumerate(named) if one == language]
        mine = np.isin(of, texts)
        loss, right = float(losses[mine].mean(dtype=np.float64)), float(is_right[mine].mean())
        count = int(mine.sum())
        found.append(LanguageScores(language, len(texts), count, right, perplexity(loss)))
    return tuple(found)


def _check_any(found: Sequence[Any], what: str, accounting: Accounting) -> None:
    if not found:
        told = f"; {accounting}" if accounting.left_out else ""
        raise DataError(f"there is no {what} to score on{told}")


def _scores(
    losses: Sequence[float], texts: int, table: Confusion, labels: tuple[LabelScores, ...]
) -> Scores:
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
