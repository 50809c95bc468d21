import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.experiments.scoring import Score, Tally, pooled, score

ANSWERS = np.log(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
TALLIES = st.integers(1, 50).flatmap(
    lambda asked: st.builds(Tally, st.integers(0, asked), st.just(asked))
)


def test_right_answers_are_counted_by_language_and_client() -> None:
    owned = {"a": np.array([0, 2]), "b": np.array([1]), "c": np.array([], int)}
    found = score(ANSWERS, np.array([0, 1, 1]), ["en", "de", "en"], owned)
    assert found.total == Tally(2, 3) and found.accuracy == 2 / 3
    assert found.by_language == {"de": Tally(1, 1), "en": Tally(1, 2)}
    assert found.by_client == {"a": Tally(1, 2), "b": Tally(1, 1)}
    assert found.loss == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())


def test_an_answer_that_is_no_number_is_wrong() -> None:
    found = score(np.full((3, 2), np.nan), np.array([0, 0, 1]), [""] * 3, {})
    assert found.total == Tally(0, 3) and found.loss is None and not found.by_language


def test_no_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="no labelled test texts"):
        score(np.empty((0, 2)), np.empty(0, int), [], {})


@given(st.lists(TALLIES, min_size=1, max_size=5))
def test_pooled_counts_add_up(tallies: list[Tally]) -> None:
    parts = [Score(tally, 1.0, {"en": tally}, {}) for tally in tallies]
    found = pooled(parts)
    assert found.total.right == sum(tally.right for tally in tallies)
    assert found.by_language["en"] == found.total
    assert found.loss == pytest.approx(1.0)


def test_an_unknown_loss_stays_unknown() -> None:
    parts = [Score(Tally(1, 1), loss, {}, {}) for loss in (0.5, None)]
    assert pooled(parts).loss is None
    assert math.isnan(Tally(0, 0).share)
