"""How many texts of each label were read as which: accuracy and the figures per label.

    table = Confusion.of(("a", "b"), [0, 0, 1], [0, 1, 1])
    table.accuracy, table.scores()

Pure: indices in, figures out. What has no texts to be a share of is None, never 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LabelScores:
    """How one label does.

    Attributes:
        label: The label.
        count: Texts that have it.
        precision: Share of the texts read as it that have it; None if none is read as it.
        recall: Share of the texts that have it that are read as it; None if none has it.
        f1: Harmonic mean of the two, 2 TP / (2 TP + FP + FN); None if nothing is to be counted.
    """

    label: str
    count: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Mistake:
    """Texts of one label that are read as another, and how many."""

    label: str
    read_as: str
    count: int


@dataclass(frozen=True)
class Confusion:
    """Counts of texts, by their label (rows) and by what they are read as (columns).

    The counts add up to the texts. Another order of the labels gives the same figures in that
    order.

    Attributes:
        labels: Names of rows and columns.
        counts: Shape (labels, labels), whole numbers.
    """

    labels: tuple[str, ...]
    counts: np.ndarray

    @classmethod
    def of(cls, labels: Sequence[str], gold: Sequence[int], read: Sequence[int]) -> "Confusion":
        """Count texts.

        Args:
            labels: Names of the labels.
            gold: Index of each text's label.
            read: Index of what it is read as.
        """
        counts = np.zeros((len(labels), len(labels)), np.int64)
        np.add.at(counts, (np.array(gold, np.int64), np.array(read, np.int64)), 1)
        return cls(tuple(labels), counts)

    @property
    def total(self) -> int:
        """Texts counted."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float | None:
        """Share of texts read as what they are; None without any."""
        return _share(int(self.counts.trace()), self.total)

    def scores(self) -> list[LabelScores]:
        """Figures per label, in label order."""
        found = []
        for index, label in enumerate(self.labels):
            right = int(self.counts[index, index])
            has, read = int(self.counts[index].sum()), int(self.counts[:, index].sum())
            f1 = _share(2 * right, has + read)
            found.append(LabelScores(label, has, _share(right, read), _share(right, has), f1))
        return found

    def macro(self) -> dict[str, float | None]:
        """Plain means of precision, recall and F1 over the labels that some text has.

        A label that no text is read as counts with a precision of 0, as scikit-learn does it.
        """
        present = [score for score in self.scores() if score.count]
        return {
            name: sum(getattr(score, name) or 0.0 for score in present) / len(present)
            if present
            else None
            for name in ("precision", "recall", "f1")
        }

    def mistakes(self) -> list[Mistake]:
        """Pairs of labels that are confused, the most frequent first, then in label order."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        pairs = sorted(np.argwhere(wrong).tolist(), key=lambda pair: -int(wrong[pair[0], pair[1]]))
        return [
            Mistake(self.labels[gold], self.labels[read], int(wrong[gold, read]))
            for gold, read in pairs
        ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
