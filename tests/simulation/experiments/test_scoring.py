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


def test_a_lopsided_adapter_is_right_again_once_the_prior_is_taken_off() -> None:
    """Every answer leans to the first label; who leans least is of the second."""
    lopsided = np.log(np.array([[0.99, 0.01], [0.98, 0.02], [0.7, 0.3], [0.6, 0.4]]))
    found = score(lopsided, np.array([0, 0, 1, 1]), [""] * 4, {})
    assert found.total == Tally(2, 4) and found.balanced == Tally(4, 4)
    # Each language has a prior of its own: two alone say nothing of each other.
    assert score(lopsided, np.array([0, 0, 1, 1]), list("aabb"), {}).balanced == Tally(2, 4)


@given(st.lists(st.lists(st.floats(-9, 0), min_size=3, max_size=3), min_size=2, max_size=9))
def test_the_prior_takes_off_what_is_added_to_all(rows: list[list[float]]) -> None:
    """Law: a bias for a label, the same for all texts, changes no balanced answer."""
    answers = np.array(rows)
    gold = np.zeros(len(rows), int)
    biased = score(answers + np.array([5.0, 0.0, -3.0]), gold, [""] * len(rows), {})
    centred = answers - answers.mean(axis=0)
    margins = np.sort(centred, axis=1)
    if (margins[:, -1] - margins[:, -2] > 1e-9).all():
        assert biased.balanced == score(answers, gold, [""] * len(rows), {}).balanced


def test_answers_that_are_no_numbers_spoil_no_prior() -> None:
    answers = np.log(np.array([[0.99, 0.01], [0.7, 0.3]]))
    found = score(np.vstack([answers, [[math.nan, 0.0]]]), np.array([0, 1, 0]), [""] * 3, {})
    assert found.balanced == Tally(2, 3)


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
