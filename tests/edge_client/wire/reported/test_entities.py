"""Counts of entities: what cannot be is refused, and the F1 that is made of them has its laws."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.counts import MOST_ENTITIES, Entities, counted, pooled, scores_of

LABELS = ("Drug", "Dose")
TAGS = st.sampled_from(["O", "B-Drug", "I-Drug", "B-Dose", "I-Dose"])
Texts = list[tuple[tuple[str, ...], tuple[str, ...]]]


def of_pairs(pairs: list[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(right for right, _ in pairs), tuple(told for _, told in pairs)


TEXTS = st.lists(st.lists(st.tuples(TAGS, TAGS), max_size=8).map(of_pairs), max_size=6)
ENTITIES = TEXTS.map(lambda texts: counted(LABELS, texts))
RIGHT = Entities((2, 1), (2, 2), (1, 1), 2, 5)


def summed(one: Entities, other: Entities) -> Entities:
    def added(name: str) -> tuple[int, ...]:
        return tuple(map(sum, zip(getattr(one, name), getattr(other, name), strict=True)))

    typed, halves = one.typed + other.typed, one.partial_halves + other.partial_halves
    return Entities(added("there"), added("found"), added("strict"), typed, halves)


@given(TEXTS, TEXTS)
def test_counts_of_parts_add_up_to_those_of_the_whole(first: Texts, second: Texts) -> None:
    parts = counted(LABELS, first), counted(LABELS, second)
    assert summed(*parts) == counted(LABELS, first + second)


@given(st.lists(ENTITIES, min_size=1, max_size=5))
def test_pooled_alike_it_is_the_f1_of_the_sum(told: list[Entities]) -> None:
    whole = told[0]
    for one in told[1:]:
        whole = summed(whole, one)
    assert pooled([(one, 1.0) for one in told]) == scores_of(whole)


@given(st.lists(st.tuples(ENTITIES, st.floats(0.0, 1.0)), min_size=1, max_size=5), st.randoms())
def test_in_another_order_not_a_digit_is_another(
    told: list[tuple[Entities, float]], order: random.Random
) -> None:
    assert pooled(order.sample(told, len(told))) == pooled(told)


@given(ENTITIES, st.floats(1e-6, 1.0))
def test_one_alone_gives_its_own_f1_whatever_it_weighs(told: Entities, weight: float) -> None:
    ours, whole = pooled([(told, weight)]), scores_of(told)
    assert ours.by_type == pytest.approx(whole.by_type)
    assert ours.strict == pytest.approx(whole.strict) and ours.macro == pytest.approx(whole.macro)


@given(ENTITIES)
def test_the_stricter_way_to_be_right_is_never_above_the_laxer(told: Entities) -> None:
    scores = scores_of(told)
    if scores.strict is not None and scores.typed is not None and scores.partial is not None:
        assert 0.0 <= scores.strict <= scores.typed <= 1.0
        assert scores.strict <= scores.partial <= 1.0
    else:
        assert told == Entities((0, 0), (0, 0), (0, 0))


def test_f1_is_what_it_is_by_hand() -> None:
    scores = scores_of(RIGHT)
    assert scores.strict == 4 / 7 and scores.typed == 4 / 7 and scores.partial == 5 / 7
    assert scores.by_type == (2 / 4, 2 / 3)
    assert scores.macro == (2 / 4 + 2 / 3) / 2
    assert scores.weighted == pytest.approx((2 * 2 / 4 + 2 / 3) / 3)


def test_of_nothing_there_is_no_f1() -> None:
    scores = scores_of(Entities((0, 3), (0, 0), (0, 0)))
    assert scores.by_type == (None, 0.0) and scores.strict == scores.macro == 0.0
    assert scores_of(Entities((0,), (0,), (0,))).strict is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"there": (2, -1)}, "counts of 0 to 2"),
        ({"found": (2, MOST_ENTITIES)}, "counts of 0 to 2"),
        ({"typed": -1}, "counts of 0 to 2"),
        ({"there": (2, 1, 0)}, "one count per type"),
        ({"strict": (1,)}, "one count per type"),
        ({"strict": (2, 2)}, "strict: no more than there are"),
        ({"found": (0, 2)}, "strict: no more than there are"),
        ({"typed": 4}, "typed: no more than there are"),
        ({"partial_halves": 7}, "partial_halves: two each at most"),
    ],
)
def test_counts_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongInput, match=f"entities: {said}"):
        replace(RIGHT, **change)
