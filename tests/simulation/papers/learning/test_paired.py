import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from simulation.papers.learning.paired import interval


def test_an_interval_of_three_is_that_of_students_t() -> None:
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2.0 - 2.484, 2.0 + 2.484), abs=1e-3)
    assert interval([5.0] * 30) == (5.0, 5.0)


def test_one_value_has_no_interval() -> None:
    assert interval([1.0]) is None and interval([]) is None
