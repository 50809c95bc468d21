import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.profiling.records.compare import CONFIDENT, confidence_apart, confidence_beside

numbers = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@given(numbers, numbers)
def test_swapping_the_sets_changes_no_confidence(a: list[float], b: list[float]) -> None:
    found = confidence_apart(a, b)
    assert found is not None and 0 <= found <= 1
    assert found == pytest.approx(confidence_apart(b, a))


def test_five_beside_five_can_decide_and_three_beside_three_cannot() -> None:
    assert confidence_apart([1, 2, 3], [4, 5, 6]) == pytest.approx(0.90)
    assert confidence_apart([1, 2, 3], [2.5, 5, 6]) == pytest.approx(0.80)
    assert confidence_apart([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(1 - 2 / 252)
    assert 0.90 < CONFIDENT < 1 - 2 / 252
    assert confidence_apart([1], [4, 5, 6]) is None


def test_a_peer_that_does_not_spread_changes_no_confidence() -> None:
    ours, later = [1.0, 2.0, 3.0, 4.0], [8.0, 12.0, 10.0, 16.0]
    found = confidence_beside(ours, [1, 1], later, [2, 2])
    assert found == confidence_apart(ours, [4.0, 6.0, 5.0, 8.0])


def test_a_peer_that_spreads_beyond_the_change_leaves_no_confidence() -> None:
    assert confidence_beside([1, 1.1, 1.2, 1.3], [1, 2], [2, 2.1, 2.2, 2.3], [1, 2]) == 0
    assert confidence_beside([1, 1.1, 1.2, 1.3], [1], [2, 2.1, 2.2, 2.3], [1, 2]) is None
