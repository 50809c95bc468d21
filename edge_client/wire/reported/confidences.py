"""How sure a device is of its unlabelled texts, as counts; nothing else of them leaves it.

For each label a histogram over 40 bins of equal width in log-odds, the first of which begins at a
confidence of 0.5. From all devices' counts `coordinator.rounds.metrics` sets how sure a label
must be. A threshold is always the start of a bin, so both sides agree exactly on what is above it.

    told = counted(30, [0, 1], [0.93, 0.4], 2)  # 30 texts, two of them read; the second unsure
    told.sure([as_bin(0.9), as_bin(0.9)])  # 1
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.errors import demand

BINS = 40
WIDTH = 0.3  # of a bin, in log-odds
STARTS = tuple(1.0 / (1.0 + math.exp(-WIDTH * index)) for index in range(BINS))


@dataclass(frozen=True)
class Confidences:
    """How sure a device is of the texts it has read.

    Attributes:
        texts: Unlabelled texts it holds, read or not.
        counts: Counts by label, then by bin: texts of that most probable label and confidence; a
            text whose confidence is below 0.5 is in no bin.
    """

    texts: int
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        rows = [(self.texts,), *self.counts]
        is_whole = all(len(row) == BINS for row in self.counts)
        demand(is_whole, f"confidences: {BINS} counts per label expected")
        is_counted = all(0 <= count < 2**53 for row in rows for count in row)
        demand(is_counted, "confidences: a count is not between 0 and 2^53")

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
