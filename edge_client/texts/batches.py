"""A task's texts as batches of token ids for one base."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.texts.tokens import Prompt, Tokens


@dataclass(frozen=True)
class Batch:
    """Encoded inputs of equal padded length, and where in them answers are read.

    Of each text one answer is read, or several (`texts`); of none of them no answer.

    Attributes:
        ids: Token ids, int64, shape (batch, tokens); padded on the right.
        attention: 1 for real tokens, int64, shape (batch, tokens).
        mask_positions: Where each answer is read, int64, shape (answers,).
        labels: Index of each answer's label, int64, shape (answers,); -1 where unknown.
        weights: Each answer's weight in the loss, float32, shape (answers,); None: all have 1.
        offsets: Added to the labels' logits in the loss, float32, shape (labels,); None: nothing.
        texts: Of which text each answer is, int64, shape (answers,), ascending; None: one of each.
    """

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    offsets: np.ndarray | None = None
    texts: np.ndarray | None = None

    def some(self, rows: slice | list[int]) -> "Batch":
        """Some of its texts, ascending, as wide as all are.

        Law: in whatever parts a batch is taken, each answer is in the part of its text.
        """
        chosen = np.arange(len(self.ids))[rows]
        answers, texts = chosen, None
        if self.texts is not None:
            place = np.full(len(self.ids), -1)
            place[chosen] = np.arange(len(chosen))
            answers = np.flatnonzero(place[self.texts] >= 0)
            texts = place[self.texts[answers]]
        return replace(
            self,
            ids=self.ids[rows],
            attention=self.attention[rows],
            mask_positions=self.mask_positions[answers],
            labels=self.labels[answers],
            weights=None if self.weights is None else self.weights[answers],
            texts=texts,
        )


@dataclass(frozen=True)
class Encoder:
    """How this task's texts become batches for this base.

    Attributes:
        tokens: The base's tokenizer.
        task: Patterns and labels.
        cloze: Whether the pattern is filled; else the plain text is read by a classifier.
        limit: Longest input in tokens.
        soft: Tokens of a soft prompt, which come before every text.
        pattern: Which of the task's patterns is filled.

    Raises:
        TaskError: A pattern that is asked leaves no room for a text.
    """

    tokens: Tokens
    task: Task
    cloze: bool
    limit: int
    soft: int = 0
    pattern: int = 0

    def __post_init__(self) -> None:
        for pattern in self.task.asked() if self.cloze else ():
            self.tokens.room(pattern, self.limit)

    def views(self) -> list["Encoder"]:
        """One encoder for each pattern that is asked; this one alone without an ensemble."""
        if not (self.cloze and self.task.ensemble):
            return [self]
        return [replace(self, pattern=index) for index in range(len(self.task.patterns))]

    def unknown_share(self, example: Example) -> float:
        """Share of a text's tokens, as far as they are read, that the tokenizer does not know.

        0 to 1; 0 of a text without tokens and where every text has known ones.
        """
        texts = example.text, example.text_b
        ids = [id_ for text in texts for id_ in self.tokens.first_ids(text, self.limit)]
        unknown = sum(id_ == self.tokens.unknown_id for id_ in ids)
        return unknown / len(ids) if ids else 0.0

    def prompts(self, examples: Sequence[Example]) -> list[Prompt]:
        """Encode texts one by one."""
        if self.cloze:
            pattern = self.task.patterns[self.pattern]
            return [self.tokens.cloze(pattern, example, self.limit) for example in examples]
        return [self.tokens.plain(example, self.limit) for example in examples]

    def labels(self, examples: Sequence[Example]) -> list[int]:
        """Index of each text's label, -1 where it has none."""
        index = {label: number for number, label in enumerate(self.task.labels)}
        return [-1 if example.label is None else index[example.label] for example in examples]

    def batch(
        self,
        prompts: Sequence[Prompt],
        labels: Sequence[int],
        weights: Sequence[float] | None = None,
        offsets: np.ndarray | None = None,
    ) -> Batch:
        """Pad prompts to the longest of them."""
        width = max(len(prompt.ids) for prompt in prompts)
        ids = np.full((len(prompts), width), self.tokens.pad_id, np.int64)
        attention = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.ids)] = prompt.ids
            attention[row, : len(prompt.ids)] = 1
        positions = np.array([prompt.mask_position for prompt in prompts], np.int64)
        weighed = None if weights is None else np.array(weights, np.float32)
        known = np.array(labels, np.int64)
        return Batch(ids, attention, positions, known, weighed, offsets)

    def by_length(
        self, examples: Sequence[Example], rows: int, tokens: int
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of texts of similar length, with the indices of their rows.

        A batch of short texts may have more rows than asked, never more tokens in all.

        Args:
            examples: The texts.
            rows: Texts of full length in one batch.
            tokens: Tokens of a text of full length.
        """
        prompts = self.prompts(examples)
        lengths = [len(prompt.ids) + self.soft for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda row: lengths[row])
        room = rows * (tokens + self.soft)
        while order:
            chosen = order[: max(1, room // lengths[order[0]])]
            while len(chosen) > 1 and len(chosen) * lengths[chosen[-1]] > room:
                chosen.pop()
            order = order[len(chosen) :]
            yield chosen, self.batch([prompts[row] for row in chosen], [-1] * len(chosen))
