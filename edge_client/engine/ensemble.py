"""The answers of several patterns to the same texts, as one answer.

Schick and Schuetze 2021 (arXiv:2001.07676), section 3.2: the patterns' scores are averaged, and
the softmax is taken of that. Every pattern weighs the same, at temperature 1.
"""

from collections.abc import Sequence

import numpy as np


def averaged(answers: Sequence[np.ndarray]) -> np.ndarray:
    """Mean log-probabilities of several patterns, renormalized.

    One pattern's answers come back as they are; equal ones are, but for rounding, the mean.

    Args:
        answers: Log-probabilities of each pattern, at least one, float32, (texts, labels).
    """
    if len(answers) == 1:
        return answers[0]
    mean = np.mean(answers, axis=0, dtype=np.float64)
    highest = mean.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.exp(mean - highest).sum(axis=1, keepdims=True)
    found: np.ndarray = (mean - highest - np.log(total)).astype(np.float32)
    return found
