from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.wire.figures import Row, by_round, counted, weighted


def row(**fields: Any) -> Row:
    return {"round_index": 1, "kind": "train", "outcome": "done", "num_examples": 1} | fields


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_cutting_a_row_in_two_leaves_the_mean(
    cut: int, other: int, ours: float, its: float
) -> None:
    rest = [row(num_examples=other, accuracy=its), row(num_examples=0, accuracy=1.0)]
    whole = [row(num_examples=2 * cut, accuracy=ours), *rest]
    halves = [row(num_examples=cut, accuracy=ours)] * 2
    assert weighted([*halves, *rest], "accuracy") == pytest.approx(weighted(whole, "accuracy"))


def test_a_figure_that_nobody_told_has_no_mean() -> None:
    told_nothing = [row(accuracy=None), row(num_examples=0, accuracy=1.0), row()]
    assert weighted(told_nothing, "accuracy") is None and weighted([], "accuracy") is None


def test_what_came_late_failed_or_is_other_work_does_not_count() -> None:
    kept = [row(), row(is_late=False)]
    other = [row(is_late=True), row(outcome="failed"), row(kind="label")]
    assert counted([*other, *kept], "train") == kept


def test_of_a_round_that_was_evaluated_again_the_newest_attempt_counts() -> None:
    again = [row(kind="evaluate", attempt=2, device_id=name) for name in "ab"]
    older = [row(kind="evaluate", attempt=1), row(kind="evaluate")]
    others = [row(kind="evaluate", attempt=1, round_index=2), row(kind="evaluate", run_id="r")]
    late = row(kind="evaluate", attempt=3, is_late=True)
    assert counted([*older, *again, *others, late], "evaluate") == [*again, *others]
    without = row(kind="evaluate", attempt=3, num_examples=0)
    assert weighted(counted([*older, *again, without], "evaluate"), "num_examples") == 1.0
    assert counted([*older, *again, without], "evaluate") == [*again, without]
    # In asynchronous rounds work of an attempt that was given up for an evaluation goes on.
    trained = [row(attempt=1), row(attempt=2)]
    assert counted(trained, "train") == trained


def test_rounds_are_in_order_and_their_rows_as_they_came() -> None:
    rows = [row(round_index=2, device_id="b"), row(round_index=0), row(round_index=2)]
    assert list(by_round(rows).items()) == [(0, [rows[1]]), (2, [rows[0], rows[2]])]
