"""Which texts to read first: those that stand for many others, and differ from those before them.

Vote-k (Su et al. 2022, arXiv:2209.01975, section 3.1, its fast form), which FeS runs over the
embeddings of a second model. Here the base's own early states are what texts are compared by.
"""

import numpy as np

NEIGHBOURS = 150  # of the paper
DISCOUNT = 10.0  # rho: a text's vote counts a tenth for each neighbour that is chosen already
BLOCK = 512  # rows compared at once, at most
BLOCK_BYTES = 8 << 20  # of what is found out about them


def vote_k(features: np.ndarray) -> list[int]:
    """Order texts: every next one has the most votes of texts that nobody stands for yet.

    Every text votes for its nearest neighbours by cosine, 150 of them or a quarter of the texts if
    they are few. Ties go to the earlier text; equal features give an equal order.

    Args:
        features: (texts, hidden).

    Returns:
        Every index once.
    """
    texts = len(features)
    near = neighbours_of(features, min(NEIGHBOURS, max(1, texts // 4), max(0, texts - 1)))
    votes = np.bincount(near.ravel(), minlength=texts).astype(np.float64)
    (voters, starts), chosen_near = _voters(near), np.zeros(texts, np.int64)
    left, order = np.ones(texts, bool), []
    for _ in range(texts):
        best = int(np.where(left, votes, -np.inf).argmax())
        order.append(best)
        left[best] = False
        # Each of its voters has one more neighbour that is chosen.
        for voter in voters[starts[best] : starts[best + 1]].tolist():
            before = DISCOUNT ** -chosen_near[voter].astype(float)
            votes[near[voter].astype(np.intp)] += before / DISCOUNT - before
            chosen_near[voter] += 1
        own = DISCOUNT ** -chosen_near[best].astype(float)
        votes[near[best]] -= own  # a chosen text no longer votes
        near[best] = best
    return order


def neighbours_of(features: np.ndarray, count: int) -> np.ndarray:
    """Indices of each text's nearest others, int32, (texts, count), in no order."""
    unit = _directions(features)
    texts = len(unit)
    found = np.empty((texts, count), np.int32)
    together = _together(texts)
    room = np.empty((min(together, texts), texts), np.float32)  # of all blocks, one by one
    for start in range(0, texts, together):
        some = unit[start : start + together]
        apart = np.matmul(some, unit.T, out=room[: len(some)])
        np.negative(apart, out=apart)
        for row, one in enumerate(apart, start):
            one[row] = np.inf  # no text votes for itself
            found[row] = _smallest(one, count)
    return found


def _together(texts: int) -> int:
    """Rows that are compared with all texts at once: a power of two where it is not all of them."""
    room = max(1, BLOCK_BYTES // (4 * max(1, texts)))
    return min(BLOCK, 1 << (room.bit_length() - 1))


def _directions(features: np.ndarray) -> np.ndarray:
    """Features of length 1, float32; those without a direction stay zeros."""
    unit = np.empty(features.shape, np.float32)
    for start in range(0, len(unit), BLOCK):
        some = features[start : start + BLOCK]
        norms = np.linalg.norm(some, axis=1, keepdims=True)
        unit[start : start + BLOCK] = some / np.where(norms > 0, norms, 1.0)
    return unit


def _smallest(row: np.ndarray, count: int) -> np.ndarray:
    """Indices of the smallest numbers; of equal ones the first, and what is none comes last."""
    last = np.partition(row, count - 1)[count - 1]
    if np.isnan(last):
        return np.argsort(row, kind="stable")[:count]
    below = np.flatnonzero(row < last)
    return np.concatenate((below, np.flatnonzero(row == last)[: count - len(below)]))


def _voters(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts that vote for each text, one text after the other, and where each one's begin."""
    texts = len(near)
    starts = np.zeros(texts + 1, np.int64)
    np.cumsum(np.bincount(near.ravel(), minlength=texts), out=starts[1:])
    voters, free = np.empty(near.size, np.int32), starts[:-1].copy()
    for voter, chosen in enumerate(near):
        voters[free[chosen]] = voter
        free[chosen] += 1
    return voters, starts
