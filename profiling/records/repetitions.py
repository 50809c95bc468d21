"""Whether repetitions before and after are apart, by a rank sum test (Mann and Whitney 1947)."""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from statistics import median

import numpy as np

CONFIDENT = (
    0.95  # from here on they count as apart: four beside four can be, three beside three not
)
MOST_ORDERS = 20_000  # of repetitions; with more of them so many are drawn


def confidence_apart(before: Sequence[float], after: Sequence[float]) -> float | None:
    """How sure it is that one set of repetitions is higher than the other, 0 to 1.

    One minus the two-sided p-value (twice the one-sided, since either way counts), by counting
    orders. Swapping the sets changes nothing. None where one of them has a single value.
    """
    if min(len(before), len(after)) < 2:
        return None
    together = np.array([*before, *after])
    ranks = together.argsort(kind="stable").argsort() + 1.0
    for value in set(together.tolist()):  # equal values share their places
        ranks[together == value] = ranks[together == value].mean()
    count, size = len(before), len(together)
    if comb(size, count) <= MOST_ORDERS:
        sums = np.array([ranks[list(rows)].sum() for rows in combinations(range(size), count)])
    else:
        generator = np.random.Generator(np.random.PCG64(0))
        sums = np.array([generator.permutation(ranks)[:count].sum() for _ in range(MOST_ORDERS)])
    seen, middle = ranks[:count].sum(), count * (size + 1) / 2
    as_far = sums >= seen if seen >= middle else sums <= seen
    return max(0.0, 1.0 - 2.0 * float(as_far.mean()))


def confidence_beside(
    before: Sequence[float],
    peer_before: Sequence[float],
    after: Sequence[float],
    peer_after: Sequence[float],
) -> float | None:
    """How sure it is that ours changed relative to a peer, 0 to 1.

    Ours are divided by that repetition of the peer, then and now, which brings both nearest
    together; 0 where their order turns by it. None where one of the four has a single value.
    """
    if min(map(len, (before, peer_before, after, peer_after))) < 2:
        return None
    is_up = median(after) / median(peer_after) > median(before) / median(peer_before)
    then, now = (min, max) if is_up else (max, min)
    old = [value / then(peer_before) for value in before]
    new = [value / now(peer_after) for value in after]
    return confidence_apart(old, new) if (median(new) > median(old)) == is_up else 0.0
