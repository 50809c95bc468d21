"""Entities found in tags: conlleval's convention, and the laws of their counts."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.tasks.counts import Entities, EntityScores, Span, counted, scores_of, spans

LABELS = ("Drug", "Disease")
TAG = st.sampled_from(["O", "B-Drug", "I-Drug", "B-Disease", "I-Disease"])
TAGS = st.lists(TAG, max_size=9)
PAIR = st.integers(0, 9).flatmap(
    lambda words: st.tuples(*[st.lists(TAG, min_size=words, max_size=words)] * 2)
)
PAIRS = st.lists(PAIR, max_size=5)
Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]


def scored(gold: str, told: str) -> EntityScores:
    return scores_of(counted(LABELS, [(gold.split(), told.split())]))


def plus(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one + other for one, other in zip(some, others, strict=True))


# What seqeval finds in the same tags by its default, which is conlleval's.
@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-Drug I-Drug O", [(0, 2, "Drug")]),
        ("B-Drug B-Drug", [(0, 1, "Drug"), (1, 2, "Drug")]),
        ("O I-Drug I-Drug", [(1, 3, "Drug")]),
        ("B-Drug I-Disease", [(0, 1, "Drug"), (1, 2, "Disease")]),
        ("I-Drug O I-Drug", [(0, 1, "Drug"), (2, 3, "Drug")]),
        ("I-Drug I-Disease I-Disease", [(0, 1, "Drug"), (1, 3, "Disease")]),
        ("I-Disease B-Disease I-Disease", [(0, 1, "Disease"), (1, 3, "Disease")]),
    ],
)
def test_entities_are_conllevals(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert list(spans(tags.split())) == [Span(*one) for one in expected]


@given(TAGS)
def test_entities_lie_in_order_and_share_no_word(tags: list[str]) -> None:
    found = spans(tags)
    assert all(one.end <= other.start for one, other in pairwise(found))
    inside = {place for one in found for place in range(one.start, one.end)}
    assert inside == {place for place, tag in enumerate(tags) if tag != "O"}
    again = ["O"] * len(tags)
    for start, end, label in found:
        again[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    assert spans(again) == found


# What each way to be right gives; the first three are what seqeval gives.
@pytest.mark.parametrize(
    ("gold", "told", "strict", "typed", "partial"),
    [
        ("B-Drug I-Drug O", "B-Drug I-Drug O", 1, 1, 1),
        ("B-Drug O B-Disease", "B-Drug O O", 2 / 3, 2 / 3, 2 / 3),
        ("B-Drug I-Drug O", "O O B-Drug", 0, 0, 0),
        ("B-Drug I-Drug O", "B-Drug O O", 0, 1, 0.5),  # some of its words
        ("B-Drug I-Drug O", "B-Disease I-Disease O", 0, 0, 1),  # its words, another type
        ("B-Drug I-Drug O", "O B-Disease I-Disease", 0, 0, 0.5),
        ("B-Drug I-Drug I-Drug", "B-Drug B-Drug B-Drug", 0, 0.5, 0.25),  # counts once
    ],
)
def test_entities_are_right_in_three_ways(
    gold: str, told: str, strict: float, typed: float, partial: float
) -> None:
    found = scored(gold, told)
    assert (found.strict, found.typed, found.partial) == pytest.approx((strict, typed, partial))


def test_means_over_types_leave_out_those_that_are_not_there() -> None:
    found = scored("B-Drug O B-Drug B-Drug", "B-Drug B-Disease O B-Drug")
    assert found.by_type == pytest.approx((0.8, 0.0))
    assert (found.macro, found.weighted) == pytest.approx((0.8, 0.8))
    both = scored("B-Drug O B-Disease B-Drug", "B-Drug O O B-Drug")
    assert both.macro == pytest.approx(0.5) and both.weighted == pytest.approx(2 / 3)


def test_nothing_there_and_nothing_found_is_no_score() -> None:
    assert scored("O O", "O O") == EntityScores(None, None, None, None, None, (None, None))
    assert scored("O O", "O B-Drug").strict == 0.0 and scored("O", "B-Drug").macro is None


@given(PAIRS, PAIRS)
def test_counts_of_parts_add_up(some: Pairs, others: Pairs) -> None:
    one, other = counted(LABELS, some), counted(LABELS, others)
    added = Entities(
        plus(one.there, other.there),
        plus(one.found, other.found),
        plus(one.strict, other.strict),
        one.typed + other.typed,
        one.partial_halves + other.partial_halves,
    )
    assert counted(LABELS, [*some, *others]) == added


@given(PAIRS)
def test_what_is_strictly_right_is_right_in_every_way(pairs: Pairs) -> None:
    found = counted(LABELS, pairs)
    assert sum(found.strict) <= found.typed
    assert 2 * sum(found.strict) <= found.partial_halves
    assert found.typed <= found.partial_halves  # a word in common is one half at least


@given(PAIRS)
def test_what_is_told_as_it_is_is_all_found(pairs: Pairs) -> None:
    found = counted(LABELS, [(gold, gold) for gold, _ in pairs])
    assert found.there == found.found == found.strict
    assert found.typed == sum(found.there) and found.partial_halves == 2 * sum(found.there)


@given(PAIRS)
def test_strict_is_the_same_whichever_side_is_right(pairs: Pairs) -> None:
    one = counted(LABELS, pairs)
    other = counted(LABELS, [(told, gold) for gold, told in pairs])
    assert one.strict == other.strict and one.there == other.found
