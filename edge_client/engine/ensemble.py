"""Pattern ensembling: combines the answers of several patterns to the same texts.

Schick and Schuetze 2021 (arXiv:2001.07676), section 3.2: softmax of the patterns' mean scores, with
equal weights and a temperature of 1.
"""

from collections.abc import Sequence

import numpy as np


def averaged(answers: Sequence[np.ndarray], *, is_normalized: bool = True) -> np.ndarray:
    """Mean log-probabilities of several patterns, renormalized where they sum to 1.

    One pattern's answers come back as they are; equal ones are, but for rounding, the mean.

    Args:
        answers: Log-probabilities of each pattern, at least one, float32, (texts, labels).
        is_normalized: Whether a row's probabilities sum to 1; if not, each label has its own.
    """
    if len(answers) == 1:
        return answers[0]
    if not is_normalized:
        return _of_odds(answers)
    return normalized(np.asarray(answers, np.float64).mean(axis=0))


def normalized(scores: np.ndarray) -> np.ndarray:
    """Log-probabilities of scores, float64 to float32, (texts, labels)."""
    highest = scores.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.exp(scores - highest).sum(axis=1, keepdims=True)
    found: np.ndarray = (scores - highest - np.log(total)).astype(np.float32)
    return found


def _of_odds(answers: Sequence[np.ndarray]) -> np.ndarray:
    """Log-probabilities whose log-odds are the means of those given."""
    rows = np.asarray(answers, np.float64)
    odds = rows - np.log(np.maximum(-np.expm1(rows), np.finfo(np.float64).tiny))
    found: np.ndarray = -np.logaddexp(0.0, -odds.mean(axis=0)).astype(np.float32)
    return found
