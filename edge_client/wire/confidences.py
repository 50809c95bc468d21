"""How sure a label must be, class by class, so that no class floods and none is left out.

A model is surer of some classes than of others: held to one confidence, a federation soon trains
on the easiest class alone and answers it to everything. So devices tell how many of their texts
they are how sure of, as counts; and the coordinator sets one threshold a class such that all
classes are held about equally often over the population. Counts are all that leaves a device.

Like FlexMatch (Zhang et al. 2021, arXiv:2110.08263) a class that is harder to be sure of gets a
lower threshold, down to a floor; like CReST (Wei et al. 2021, arXiv:2102.09559) a class that is
easy gets a higher one. The curriculum says how many of each class are held; beyond its first step
the surest class must have as many above `Labelling.confidence`.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

BINS = 40
WIDTH = 0.3  # of a bin, in log-odds; the first one begins at a confidence of 0.5


STARTS = tuple(1.0 / (1.0 + math.exp(-WIDTH * index)) for index in range(BINS))


@dataclass(frozen=True)
class Confidences:
    """How sure a device is of the texts it has read.

    Attributes:
        texts: Unlabelled texts it holds, read or not.
        counts: By label, then by bin: texts of that most probable label and confidence; a text
            whose confidence is below 0.5 is in no bin.
    """

    texts: int
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        rows = [(self.texts,), *self.counts]
        if any(len(row) != BINS for row in self.counts):
            raise ValueError(f"confidences: {BINS} counts a label expected")
        if any(not 0 <= count < 2**53 for row in rows for count in row):
            raise ValueError("confidences: a count is not between 0 and 2^53")

    def sure(self, thresholds: Sequence[float]) -> int:
        """Texts at least as sure as their label's threshold, which is the start of a bin."""
        rows = zip(self.counts, thresholds, strict=True)
        return sum(sum(row[bin_above(least) :]) for row, least in rows)


def bin_above(confidence: float) -> int:
    """The lowest bin of which all confidences are at least this; they may all be lower."""
    return bisect_left(STARTS, confidence)


def bin_of(confidence: float) -> int:
    """The bin of a confidence; -1 below 0.5 or NaN. Bins grow with it, the last has no end."""
    return bisect_right(STARTS, confidence) - 1 if confidence >= STARTS[0] else -1


def as_bin(confidence: float) -> float:
    """A threshold moved up to the start of a bin, so that counts say exactly what is above it.

    Only one beyond the start of the last bin moves down, to it.
    """
    return STARTS[min(BINS - 1, bin_above(confidence))]


def counted(
    texts: int, labels: Sequence[int], confidences: Sequence[float], num_labels: int
) -> Confidences:
    """Count what a device has read.

    Args:
        texts: Unlabelled texts it holds.
        labels: Most probable label of each text read.
        confidences: Its calibrated probability.
        num_labels: Labels of the task.
    """
    counts = [[0] * BINS for _ in range(num_labels)]
    for label, confidence in zip(labels, confidences, strict=True):
        if (found := bin_of(confidence)) >= 0:
            counts[label][found] += 1
    return Confidences(texts, tuple(map(tuple, counts)))
