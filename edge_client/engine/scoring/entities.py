"""Entities in tagged words, and how many of them were found.

    spans(("O", "B-Drug", "I-Drug"))  # (Span(1, 3, "Drug"),)
    counted(("Drug",), [(gold_tags, told_tags)])  # of their F1: `scores_of`

Pure: tags in, counts out. What `strict`, `typed` and `partial` count, and what F1 is made of them,
is said in `edge_client.wire.reported.entities`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from edge_client.engine.scoring.confusion import LabelScores
from edge_client.formats.tags import OUTSIDE
from edge_client.wire.reported.entities import Entities, scores_of


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
    counts = zip(entities.there, entities.found, entities.strict, strict=True)
    columns = zip(labels, counts, scores_of(entities).by_type, strict=True)
    return tuple(
        LabelScores(
            label,
            there,
            right / found if found else None,
            right / there if there else None,
            f1,
        )
        for label, (there, found, right), f1 in columns
    )


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
