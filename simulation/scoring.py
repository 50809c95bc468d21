"""How an adapter does on the test texts: of everybody, by language and by client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Score:
    """Right answers over test texts.

    Attributes:
        num_examples: Texts asked.
        accuracy: Share whose most probable label is the right one.
        loss: Mean cross-entropy in nats.
        by_language: Accuracy by language; empty where the set names none.
        by_client: Accuracy on each client's own test texts; clients without any are left out.
    """

    num_examples: int
    accuracy: float
    loss: float
    by_language: dict[str, float]
    by_client: dict[str, float]


def score(
    log_probabilities: np.ndarray,
    gold: np.ndarray,
    languages: Sequence[str],
    owned: Mapping[str, np.ndarray],
) -> Score:
    """Compare answers with the right ones.

    Args:
        log_probabilities: Shape (texts, labels).
        gold: Index of each text's label, shape (texts,).
        languages: Of each text, or empty strings.
        owned: Client -> indices of its test texts.

    Raises:
        ValueError: No texts.
    """
    if not len(gold):
        raise ValueError("no labelled test texts to evaluate on")
    is_right = log_probabilities.argmax(axis=1) == gold
    loss = -log_probabilities[np.arange(len(gold)), gold].mean()
    spoken = np.array(languages)
    by_language = {name: float(is_right[spoken == name].mean()) for name in sorted(set(languages))}
    by_client = {name: float(is_right[rows].mean()) for name, rows in owned.items() if len(rows)}
    return Score(
        num_examples=len(gold),
        accuracy=float(is_right.mean()),
        loss=float(loss),
        by_language={name: share for name, share in by_language.items() if name},
        by_client=by_client,
    )
