"""The error of an accuracy that a cohort tells: its laws, and that it is as large as it says."""

import math
import random
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.scoring import Score, is_worse, pooled

TOLD = st.lists(
    st.integers(1, 50).flatmap(lambda many: st.tuples(st.integers(0, many), st.just(many))),
    min_size=2,
    max_size=20,
)


@given(TOLD, st.randoms(), st.integers(0, 100))
def test_the_order_of_devices_does_not_matter(
    told: list[tuple[int, int]], order: random.Random, more: int
) -> None:
    shuffled = order.sample(told, len(told))
    assert pooled(shuffled, len(told) + more) == pooled(told, len(told) + more)


@given(TOLD)
def test_whoever_asks_everybody_has_no_error(told: list[tuple[int, int]]) -> None:
    assert pooled(told, len(told)).error == 0.0
    error = pooled(told, len(told) + 1).error
    assert error is not None and error >= 0.0


def test_devices_that_are_all_equally_right_have_no_error() -> None:
    assert pooled([(1, 2), (5, 10), (50, 100)], 1000) == Score(56, 112, 0.0)


def test_one_device_cannot_tell_how_others_differ() -> None:
    assert pooled([(3, 4)], 2).error is None
    assert pooled([], 2) == Score(0, 0, 0.0)


def test_four_times_as_many_devices_halve_the_error() -> None:
    few = pooled([(1, 4), (3, 4)] * 25, 10**9).error
    many = pooled([(1, 4), (3, 4)] * 100, 10**9).error
    assert few is not None and many is not None
    assert few / many == pytest.approx(2.0, rel=0.01)


def test_the_error_is_how_far_cohorts_spread() -> None:
    """5,000 cohorts of 40 out of 200 unlike devices, a fifth of them without texts."""
    deal = random.Random(5)
    fleet: list[tuple[int, int]] = []
    for place in range(200):
        many = 0 if place % 5 == 0 else deal.randint(5, 60)
        fleet.append((round(many * deal.betavariate(4, 2)), many))
    drawn = [pooled(deal.sample(fleet, 40), len(fleet)) for _ in range(5000)]
    said = math.sqrt(sum((one.error or 0.0) ** 2 for one in drawn) / len(drawn))
    assert said == pytest.approx(pstdev(one.accuracy for one in drawn), rel=0.05)


def test_who_asks_everybody_hears_of_any_difference_and_a_cohort_only_of_large_ones() -> None:
    assert is_worse(Score(49, 100), Score(50, 100)) and not is_worse(Score(50, 100), Score(5, 10))
    assert not is_worse(Score(49, 100, 0.05), Score(50, 100, 0.05))
    assert is_worse(Score(30, 100, 0.05), Score(50, 100, 0.05))
    assert not is_worse(Score(0, 100, None), Score(100, 100))
