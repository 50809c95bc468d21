"""Batches of token ids, as engines take them."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from smidgen.edge_client.texts.tokens import Prompt


@dataclass(frozen=True)
class Batch:
    """Encoded inputs of equal padded length, and where in them answers are read.

    Of each text one answer is read, or several (`texts`); of none of them no answer.

    Attributes:
        ids: Token ids, int64, shape (batch, tokens); padded on the right.
        attention: 1 for real tokens, int64, shape (batch, tokens).
        mask_positions: Where each answer is read, int64, shape (answers,).
        labels: Index of each answer's label, int64, shape (answers,); -1 where unknown. Where a
            text may have several: 1 or 0 for each, or -1 for unknown, shape (answers, labels).
        weights: Each answer's weight in the loss, float32, shape (answers,); None: all have 1.
        offsets: Added to the labels' logits in the loss, float32, shape (labels,); None: nothing.
        texts: Of which text each answer is, int64, shape (answers,), ascending; None: one of each.
        segments: The number of each token's text, 1 for the second of a pair, int64, shape (batch,
            tokens), padded with 0; None: 0 for all.
    """

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    offsets: np.ndarray | None = None
    texts: np.ndarray | None = None
    segments: np.ndarray | None = None

    def some(self, rows: slice | list[int]) -> "Batch":
        """Some of its texts, ascending, padded to the longest of them.

        Law: in whatever parts a batch is taken, each answer is in the part of its text.
        """
        chosen = np.arange(len(self.ids))[rows]
        answers, texts = chosen, None
        if self.texts is not None:
            place = np.full(len(self.ids), -1)
            place[chosen] = np.arange(len(chosen))
            answers = np.flatnonzero(place[self.texts] >= 0)
            texts = place[self.texts[answers]]
        width = int((self.attention[rows].any(axis=0) * np.arange(1, self.ids.shape[1] + 1)).max())
        return replace(
            self,
            ids=self.ids[rows, :width],
            attention=self.attention[rows, :width],
            mask_positions=self.mask_positions[answers],
            labels=self.labels[answers],
            weights=None if self.weights is None else self.weights[answers],
            texts=texts,
            segments=None if self.segments is None else self.segments[rows, :width],
        )

    def by_text(self, answers: np.ndarray) -> list[np.ndarray]:
        """What is known of each answer, (answers, ...), in a part for each text."""
        count = len(self.ids)
        texts = np.arange(count) if self.texts is None else self.texts
        return np.split(answers, np.bincount(texts, minlength=count).cumsum()[:-1])


class PackedPrompts:
    """Prompts held as plain numbers, a tenth of what they take as lists."""

    def __init__(self) -> None:
        self._parts = [(array("i"), array("q", [0])) for _ in range(4)]  # numbers, where they end

    def add(self, prompts: Iterable[Prompt]) -> None:
        for prompt in prompts:
            lists = prompt.ids, prompt.places, prompt.answers, prompt.segments or []
            for (numbers, ends), more in zip(self._parts, lists, strict=True):
                numbers.extend(more)
                ends.append(len(numbers))

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in pairwise(self._parts[0][1])]

    def __getitem__(self, row: int) -> Prompt:
        ids, places, answers, segments = (
            numbers[ends[row] : ends[row + 1]].tolist() for numbers, ends in self._parts
        )
        return Prompt(ids, places, answers, segments or None)
