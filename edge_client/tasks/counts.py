"""Counts behind accuracy and F1, which add up over devices: a confusion matrix, and entities.

    table = Confusion.of(("a", "b"), [0, 0, 1], [0, 1, 1])  # indices in, figures out
    table.accuracy, table.scores()                          # None, never 0, where nothing counts
    scores_of(entities).strict
    pooled([(mine, 1.0), (yours, 0.5)]).by_type             # yours count half

An entity is a span of words and a type. A predicted one is right as `strict` if span and type equal
a gold entity's; as `typed` if it shares a word with one of its type; as `partial` if its span is
equal, whatever the type, which counts two halves, or overlaps, which counts one half. `typed` and
`partial` count each gold entity once (Segura-Bedmar et al. 2013, SemEval task 9).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.tags import OUTSIDE


@dataclass(frozen=True)
class LabelScores:
    """How one label does.

    Attributes:
        label: The label.
        count: Texts that have it.
        precision: Share of the texts read as it that have it; None if none is read as it.
        recall: Share of the texts that have it that are read as it; None if none has it.
        f1: Harmonic mean of the two, 2 TP / (2 TP + FP + FN); None if nothing is to be counted.
    """

    label: str
    count: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Mistake:
    """Texts of one label that are read as another, and how many."""

    label: str
    read_as: str
    count: int


@dataclass(frozen=True)
class Confusion:
    """Counts of texts, by their label (rows) and by what they are read as (columns).

    The counts add up to the texts. Another order of the labels gives the same figures in that
    order.

    Attributes:
        labels: Names of rows and columns.
        counts: Shape (labels, labels), whole numbers.
    """

    labels: tuple[str, ...]
    counts: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[str], gold: Sequence[int], read: Sequence[int]) -> "Confusion":
        """Count texts.

        Args:
            labels: Names of the labels.
            gold: Index of each text's label.
            read: Index of what it is read as.
        """
        counts = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts, (np.array(gold, np.int64), np.array(read, np.int64)), 1)
        return cls(tuple(labels), counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float | None:
        """Share of texts read as what they are; None without any."""
        return _share(int(self.counts.trace()), self.total)

    def scores(self) -> list[LabelScores]:
        found = []
        for index, label in enumerate(self.labels):
            right = int(self.counts[index, index])
            has, read = int(self.counts[index].sum()), int(self.counts[:, index].sum())
            found.append(_label_scores(label, has, read, right))
        return found

    def macro(self) -> dict[str, float | None]:
        """Plain means of precision, recall and F1 over the labels that some text has.

        A label that no text is read as counts with a precision of 0, as scikit-learn does it.
        """
        present = [score for score in self.scores() if score.count]
        return {
            name: sum(getattr(score, name) or 0.0 for score in present) / len(present)
            if present
            else None
            for name in ("precision", "recall", "f1")
        }

    def mistakes(self) -> list[Mistake]:
        """Pairs of labels that are confused, the most frequent first, then in label order."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        pairs = sorted(np.argwhere(wrong).tolist(), key=lambda pair: -int(wrong[pair[0], pair[1]]))
        return [
            Mistake(self.labels[gold], self.labels[read], int(wrong[gold, read]))
            for gold, read in pairs
        ]


def _label_scores(label: str, there: int, found: int, right: int) -> LabelScores:
    f1 = _f1(right, there, found)
    return LabelScores(label, there, _share(right, found), _share(right, there), f1)


def _f1(right: float, there: float, found: float) -> float | None:
    return 2 * right / (there + found) if there + found else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


MOST_ENTITIES = 2**53


@dataclass(frozen=True)
class Entities:
    """Counts over texts; those by type are in the order of the task's labels.

    Attributes:
        there: Entities that the texts hold, by type.
        found: Entities that were told, by type.
        strict: Of those found, right in words and type, by type.
        typed: Right in type, with a word in common; all types together.
        partial_halves: Halves for words alone, see above; all types together.
    """

    there: tuple[int, ...]
    found: tuple[int, ...]
    strict: tuple[int, ...]
    typed: int = 0
    partial_halves: int = 0

    def __post_init__(self) -> None:
        counts = (*self.there, *self.found, *self.strict, self.typed, self.partial_halves)
        is_sane = all(0 <= count < MOST_ENTITIES for count in counts)
        demand(is_sane, "entities: counts of 0 to 2^53")
        types = {len(self.there), len(self.found), len(self.strict)}
        demand(len(types) == 1, "entities: one count per type")
        pairs = zip(self.there, self.found, self.strict, strict=True)
        is_part = all(right <= min(there, found) for there, found, right in pairs)
        demand(is_part, "entities: strict: no more than there are, and than were found")
        most = min(sum(self.there), sum(self.found))
        demand(self.typed <= most, "entities: typed: no more than there are, and than were found")
        demand(self.partial_halves <= 2 * most, "entities: partial_halves: two each at most")


@dataclass(frozen=True)
class EntityScores:
    """F1 of entities, 0 to 1; None where none is there and none was found.

    Attributes:
        strict: Right words and right type, all types together (micro).
        typed: Right type and a word in common.
        partial: Right words, whatever the type; half of it for some of them.
        macro: Plain mean of the types' strict F1, of types that are there.
        weighted: Their mean weighted by how many are there.
        by_type: Strict F1 of each type, in the task's order.
    """

    strict: float | None
    typed: float | None
    partial: float | None
    macro: float | None
    weighted: float | None
    by_type: tuple[float | None, ...]


def scores_of(entities: Entities) -> EntityScores:
    """F1 = 2 right / (there + found), of each way to be right."""
    return pooled([(entities, 1.0)])


def pooled(told: Iterable[tuple[Entities, float]]) -> EntityScores:
    """The same over several counts, of as many types each, that weigh more or less.

    The laws: their order does not matter; where all weigh the same it is the F1 of their sum; one
    alone gives its own F1 whatever it weighs, to the last digits.

    Args:
        told: Counts and what each of them is multiplied by, 0 or more; one at least.
    """
    known = list(told)
    there, found, strict = (
        _summed([(getattr(one, name), weight) for one, weight in known])
        for name in ("there", "found", "strict")
    )
    typed, halves = _summed([((one.typed, one.partial_halves), weight) for one, weight in known])
    whole = math.fsum(there), math.fsum(found)
    by_type = tuple(_f1(*counts) for counts in zip(strict, there, found, strict=True))
    present = [(f1 or 0.0, count) for f1, count in zip(by_type, there, strict=True) if count]
    return EntityScores(
        strict=_f1(math.fsum(strict), *whole),
        typed=_f1(typed, *whole),
        partial=_f1(halves / 2, *whole),
        macro=math.fsum(f1 for f1, _ in present) / len(present) if present else None,
        weighted=math.fsum(f1 * count for f1, count in present) / whole[0] if present else None,
        by_type=by_type,
    )


def _summed(rows: Sequence[tuple[Sequence[int], float]]) -> list[float]:
    """Each column's weighted sum; the exact one, so that no order shows in it."""
    columns = zip(*(counts for counts, _ in rows), strict=True)
    weights = [weight for _, weight in rows]
    return [
        math.fsum(count * weight for count, weight in zip(column, weights, strict=True))
        for column in columns
    ]


class Span(NamedTuple):
    """An entity: words [start, end) of a text, and its type."""

    start: int
    end: int
    label: str


def spans(tags: Sequence[str]) -> tuple[Span, ...]:
    """The entities that tags tell, in order.

    An inner tag that follows no word of its type begins one, as conlleval has it.
    """
    found: list[Span] = []
    for place, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        last = found[-1] if found else None
        if tag == OUTSIDE:
            continue
        if kind == "I" and last and last.end == place and last.label == label:
            found[-1] = last._replace(end=place + 1)
        else:
            found.append(Span(place, place + 1, label))
    return tuple(found)


def tags_of(found: Sequence[Span], words: int) -> tuple[str, ...]:
    """The tags of a text's words that tell these entities.

    Law: `spans` of them gives the entities back.

    Args:
        found: Entities, none of which shares a word with another.
        words: How many words the text has.
    """
    tags = [OUTSIDE] * words
    for start, end, label in found:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tuple(tags)


def type_scores(labels: Sequence[str], entities: Entities) -> tuple[LabelScores, ...]:
    """Strict precision, recall and F1 of each type, in the task's order."""
    columns = zip(labels, entities.there, entities.found, entities.strict, strict=True)
    return tuple(_label_scores(*column) for column in columns)


def counted(
    labels: Sequence[str], texts: Iterable[tuple[Sequence[str], Sequence[str]]]
) -> Entities:
    """Count over texts; counts of parts add up to those of the whole.

    Args:
        labels: The task's types.
        texts: Of each text the right tags and those that were told; words that were not read are
            told nothing of, so their entities are missed.
    """
    index = {label: number for number, label in enumerate(labels)}
    there, found, strict = ([0] * len(labels) for _ in range(3))
    typed = halves = 0
    for gold_tags, told_tags in texts:
        gold, told = spans(gold_tags), spans(told_tags)
        for span in gold:
            there[index[span.label]] += 1
        for span in told:
            found[index[span.label]] += 1
        for span in set(gold) & set(told):
            strict[index[span.label]] += 1
        typed += len(_matched(gold, told, lambda one, other: one.label == other.label))
        pairs = _matched(gold, told, lambda one, other: True)
        halves += sum(1 + (one[:2] == other[:2]) for one, other in pairs)
    return Entities(tuple(there), tuple(found), tuple(strict), typed, halves)


def _matched(
    gold: Sequence[Span], told: Sequence[Span], is_alike: Callable[[Span, Span], bool]
) -> list[tuple[Span, Span]]:
    """Pairs that share a word and are alike; equal words are paired first, each span once."""
    pairs: list[tuple[Span, Span]] = []
    left = list(gold)
    rest = []
    for span in told:
        same = next((one for one in left if one[:2] == span[:2] and is_alike(one, span)), None)
        if same is None:
            rest.append(span)
        else:
            left.remove(same)
            pairs.append((same, span))
    for span in rest:
        near = next(
            (
                one
                for one in left
                if one.start < span.end and span.start < one.end and is_alike(one, span)
            ),
            None,
        )
        if near is not None:
            left.remove(near)
            pairs.append((near, span))
    return pairs
