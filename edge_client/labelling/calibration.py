"""Confidences that match accuracy: the prior subtracted, a temperature applied."""

import math
from collections.abc import Sequence

import numpy as np

from edge_client.labelling.pseudo_labels import COLDEST, FEWEST, HOTTEST


def calibrated(
    log_probabilities: np.ndarray, prior: Sequence[float] = (), temperature: float = 1.0
) -> np.ndarray:
    """Label probabilities, (texts, labels), with the prior and the temperature applied.

    Args:
        log_probabilities: The model's answers, (texts, labels).
        prior: Mean log-probability of each label over many texts, which is taken off: what is left
            says how much more a text speaks for a label than texts do anyway. Empty: nothing is.
        temperature: Above 1 makes answers less sure, below 1 surer.
    """
    scores = log_probabilities.astype(np.float64)
    if len(prior):
        scores = scores - np.asarray(prior)
    scores = scores / temperature
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return found


def temperature_of(
    log_probabilities: np.ndarray, gold: np.ndarray, prior: Sequence[float] = ()
) -> float:
    """The temperature at which confidence on labelled texts matches accuracy.

    Guo et al. 2017 (arXiv:1706.04599): the least cross-entropy, which is convex in 1 / temperature.
    Where there are fewer than 8 texts, or all of one label, it is 1: they would say nothing.

    Args:
        log_probabilities: The model's answers, (texts, labels).
        gold: Index of each text's label, (texts,).
        prior: See `calibrated`.

    Returns:
        A temperature between 0.1 and 10.
    """
    if len(gold) < FEWEST or len(set(gold.tolist())) < 2:
        return 1.0
    rows = np.arange(len(gold))

    def loss(log_temperature: float) -> float:
        answers = calibrated(log_probabilities, prior, math.exp(log_temperature))
        return -float(np.log(np.maximum(answers[rows, gold], 1e-300)).mean())

    low, high, golden = math.log(COLDEST), math.log(HOTTEST), (math.sqrt(5) - 1) / 2
    for _ in range(40):
        first, second = high - golden * (high - low), low + golden * (high - low)
        if loss(first) <= loss(second):
            high = second
        else:
            low = first
    return math.exp((low + high) / 2)
