"""Which texts to read first: those that stand for many others, and differ from those before them.

Vote-k (Su et al. 2022, arXiv:2209.01975, section 3.1, its fast form), which FeS runs over the
embeddings of a second model. Here the base's own early states are what texts are compared by.
"""

import numpy as np

NEIGHBOURS = 150  # of the paper
DISCOUNT = 10.0  # rho: a text's vote counts a tenth for each neighbour that is chosen already
BLOCK = 512  # rows compared at once


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
    near = _neighbours(features, min(NEIGHBOURS, max(1, texts // 4), max(0, texts - 1)))
    votes, chosen_near = np.zeros(texts), np.zeros(texts, np.int64)
    np.add.at(votes, near.ravel(), 1.0)
    voters = _voters(near, texts)
    left, order = np.ones(texts, bool), []
    for _ in range(texts):
        best = int(np.where(left, votes, -np.inf).argmax())
        order.append(best)
        left[best] = False
        for voter in voters[best]:  # each of them has one more neighbour that is chosen
            before = DISCOUNT ** -chosen_near[voter].astype(float)
            votes[near[voter]] += before / DISCOUNT - before
            chosen_near[voter] += 1
        own = DISCOUNT ** -chosen_near[best].astype(float)
        votes[near[best]] -= own  # a chosen text no longer votes
        near[best] = best
    return order


def _neighbours(features: np.ndarray, count: int) -> np.ndarray:
    """Indices of each text's nearest others, (texts, count)."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    found = np.empty((len(unit), count), np.int64)
    for start in range(0, len(unit), BLOCK):
        alike = unit[start : start + BLOCK] @ unit.T
        rows = np.arange(len(alike))
        alike[rows, start + rows] = -np.inf
        found[start : start + BLOCK] = np.argsort(-alike, axis=1, kind="stable")[:, :count]
    return found


def _voters(near: np.ndarray, texts: int) -> list[list[int]]:
    """The texts that vote for each text."""
    found: list[list[int]] = [[] for _ in range(texts)]
    for voter, chosen in enumerate(near.tolist()):
        for text in chosen:
            found[text].append(voter)
    return found
