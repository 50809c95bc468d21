"""Rounds fractional shares to whole texts and assigns them, for every kind of partition.

Counts are int64 matrices (hands, piles): hands receive, piles hold texts of one kind, such as the
clients and the labels. Nothing here draws a random number but `dirichlet`.
"""

from collections.abc import Sequence
from math import isinf

import numpy as np

FITTING_PASSES = 100


def dirichlet(
    concentration: float, parts: int, draws: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw shares from a symmetric Dirichlet; an infinite concentration gives equal shares.

    Returns:
        (draws, parts); rows sum to 1. The first rows do not depend on the number of draws.
    """
    if isinf(concentration):
        return np.full((draws, parts), 1.0 / parts)
    shares: np.ndarray = generator.dirichlet(np.full(parts, concentration), size=draws)
    return shares


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Share a whole number out by weights (largest remainder, the first of equals first).

    Args:
        weights: Not negative, not all zero.
        total: What the result sums to, exactly.

    Returns:
        Each share is its exact value rounded down or up; int64.
    """
    exact = weights / weights.sum() * total
    counts: np.ndarray = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def deal(weights: np.ndarray, sizes: np.ndarray, piles: np.ndarray) -> np.ndarray:
    """Choose how many texts of each pile each hand receives.

    Laws: row k sums to `sizes[k]`, no column takes more than its pile. Where no pile runs short,
    each count is the exact `sizes[k] * weights[k] / sum(weights[k])` rounded down or up, and the
    roundings of a pile cancel from hand to hand: equal rows give columns that differ by at most 1.

    Args:
        weights: (hands, piles), float, not negative; only ratios within a row matter. A hand gets
            from a pile of weight 0 only when its others have run out.
        sizes: (hands,), summing to no more than the piles.
        piles: (piles,), texts in each.
    """
    exact = _fitted(weights, sizes, piles)
    counts = np.zeros(exact.shape, np.int64)
    left = piles.astype(np.int64)
    owed = np.zeros(len(piles))
    for hand, wanted in enumerate(exact):
        taken = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), left)
        owed += wanted
        partly = np.flatnonzero((wanted - taken > 1e-9) & (left > taken))
        most_owed = partly[np.argsort(taken[partly] - owed[partly], kind="stable")]
        taken[most_owed[: sizes[hand] - taken.sum()]] += 1
        if missing := int(sizes[hand] - taken.sum()):
            taken += _from_any(weights[hand], left - taken, missing)
        counts[hand] = taken
        left -= taken
        owed -= taken
    return counts


def _fitted(weights: np.ndarray, sizes: np.ndarray, piles: np.ndarray) -> np.ndarray:
    """Scale rows to the hands' sizes and columns down to the piles, in turn (Sinkhorn)."""
    exact = _scaled(weights, sizes)
    for _ in range(FITTING_PASSES):
        asked = exact.sum(axis=0)
        if np.all(asked <= piles * (1 + 1e-9)):
            break
        exact = _scaled(exact * np.minimum(1.0, piles / np.maximum(asked, 1e-300)), sizes)
    return exact


def _scaled(weights: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    sums = weights.sum(axis=1, keepdims=True)
    shares = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    scaled: np.ndarray = shares * sizes[:, None]
    return scaled


def _from_any(weights: np.ndarray, left: np.ndarray, missing: int) -> np.ndarray:
    """Fill a hand from what is left, the pile it likes best first."""
    order = np.lexsort((-left, -weights))
    filled = np.minimum(np.cumsum(left[order]), missing)
    taken = np.zeros(len(left), np.int64)
    taken[order] = np.diff(filled, prepend=0)
    return taken


def hand_out(piles: Sequence[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Give each hand its number of texts of each pile, from the top.

    Args:
        piles: Indices of texts.
        counts: (hands, piles), columns summing to no more than the piles.

    Returns:
        One array a hand, ascending.
    """
    hands = np.arange(len(counts))
    owners = np.concatenate([np.repeat(hands, column) for column in counts.T])
    dealt = zip(piles, counts.sum(axis=0), strict=True)
    texts = np.concatenate([pile[:used] for pile, used in dealt])
    order = np.lexsort((texts, owners))
    return np.split(texts[order], np.cumsum(counts.sum(axis=1))[:-1])
