"""Vote-k: an order of texts by whom they stand for."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.labelling.label_work import BLOCK_BYTES, NEIGHBOURS, neighbours_of, vote_k

RHO = 10.0


def points(seed: int, texts: int, hidden: int = 3) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal((texts, hidden))


def neighbours(features: np.ndarray) -> list[list[int]]:
    """Each text's neighbours, as the docstring says, one by one."""
    count = min(NEIGHBOURS, max(1, len(features) // 4), max(0, len(features) - 1))
    unit = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    alike = unit @ unit.T
    found = []
    for text in range(len(features)):
        others = [other for other in range(len(features)) if other != text]
        found.append(sorted(others, key=lambda other: -alike[text, other])[:count])
    return found


def score(text: int, chosen: list[int], near: list[list[int]]) -> float:
    """Su et al. 2022, section 3.1, word by word."""
    voters = [v for v in range(len(near)) if v not in chosen and text in near[v]]
    return sum(RHO ** -len(set(near[v]) & set(chosen)) for v in voters)


@given(st.integers(0, 2**32 - 1), st.integers(0, 24))
def test_every_next_text_has_the_highest_score_of_those_left(seed: int, texts: int) -> None:
    features = points(seed, texts)
    order, near = vote_k(features), neighbours(features)
    assert sorted(order) == list(range(texts))
    for place, text in enumerate(order):
        scores = {left: score(left, order[:place], near) for left in order[place:]}
        best = max(scores.values())
        assert scores[text] >= best - 1e-9


def test_of_each_cluster_one_comes_before_a_second_of_any() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    cluster = generator.permutation(np.arange(40) % 4)
    features = 20.0 * np.eye(4)[cluster] + 0.5 * generator.standard_normal((40, 4))
    assert set(cluster[vote_k(features)[:4]]) == set(range(4))


def test_equal_features_give_an_equal_order_and_are_left_as_they_were() -> None:
    features = points(3, 60)
    before = features.copy()
    assert vote_k(features) == vote_k(features.copy()) == vote_k(7.0 * features)
    assert (features == before).all()


def test_ties_go_to_the_earlier_text() -> None:
    """Three pairs of equal texts: each votes for its twin alone."""
    assert vote_k(np.repeat(np.eye(3), 2, axis=0)) == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("texts", [0, 1, 2, 3])
def test_a_few_texts_come_all(texts: int) -> None:
    assert sorted(vote_k(points(1, texts))) == list(range(texts))


def test_texts_without_a_direction_come_too() -> None:
    assert sorted(vote_k(np.zeros((9, 4)))) == list(range(9))


def test_more_texts_than_are_compared_at_once_come_once_each() -> None:
    assert sorted(vote_k(points(5, 1100, 8))) == list(range(1100))


@pytest.mark.parametrize("levels", [1, 2, 5, 0])
def test_of_equally_near_texts_the_earlier_are_neighbours(levels: int) -> None:
    """As a stable sort has them, which is what orders of texts on devices hang on."""
    features = points(6, 300, 4)
    if levels:
        features = np.round(levels * features) / levels
    features[::37] = np.nan  # of a base that is broken, and an order of texts comes all the same
    count, unit = 75, np.empty((300, 4), np.float32)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit[:] = features / np.where(norms > 0, norms, 1.0)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    wanted = np.argsort(-alike, axis=1, kind="stable")[:, :count]
    assert np.array_equal(np.sort(neighbours_of(features, count)), np.sort(wanted))


def test_many_texts_take_little_more_memory_than_a_block_of_them() -> None:
    texts, hidden = 6000, 2
    features = points(8, texts, hidden).astype(np.float32)
    tracemalloc.start()
    try:
        near = neighbours_of(features, NEIGHBOURS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert near.nbytes == 4 * texts * NEIGHBOURS
    assert peak <= near.nbytes + features.nbytes + BLOCK_BYTES + (1 << 20)
