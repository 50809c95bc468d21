"""A task's texts as batches of token ids for one base."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from edge_client.texts.examples import Example
from edge_client.texts.masked import masked, masked_in, pieces_of
from edge_client.texts.tagging import tagged
from edge_client.texts.tasks import Task
from edge_client.texts.tokens import Prompt, Tokens

TOGETHER = 256  # texts whose prompts are lists at once, where there may be many


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
            segments=None if self.segments is None else self.segments[rows],
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
        """Of each prompt its ids' number."""
        return [end - start for start, end in pairwise(self._parts[0][1])]

    def __getitem__(self, row: int) -> Prompt:
        ids, places, answers, segments = (
            numbers[ends[row] : ends[row + 1]].tolist() for numbers, ends in self._parts
        )
        return Prompt(ids, places, answers, segments or None)


@dataclass(frozen=True)
class Encoder:
    """How this task's texts become batches for this base.

    Attributes:
        tokens: The base's tokenizer.
        task: What is asked.
        cloze: Whether the pattern is filled; else the plain text is read by a classifier. Of tasks
            that have patterns.
        limit: Longest input in tokens.
        soft: Tokens of a soft prompt, which come before every text.
        pattern: Which of the task's patterns is filled.

    Raises:
        TaskError: A pattern that is asked, or the base's specials, leave no room for a text.
    """

    tokens: Tokens
    task: Task
    cloze: bool
    limit: int
    soft: int = 0
    pattern: int = 0

    def __post_init__(self) -> None:
        if not self.is_filled:
            self.tokens.plain_room(self.limit)
            return
        for pattern in self.task.asked():
            self.tokens.room(pattern, self.limit)

    @property
    def is_filled(self) -> bool:
        """Whether texts are put into a pattern."""
        return self.cloze and self.task.kind == "labels"

    def views(self) -> list["Encoder"]:
        """One encoder for each pattern that is asked; this one alone without an ensemble."""
        if not (self.is_filled and self.task.ensemble):
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

    def prompts(self, examples: Sequence[Example], draw: int = 0, first: int = 0) -> list[Prompt]:
        """Encode texts one by one, with their right answers where they are known.

        Args:
            examples: The texts.
            draw: Seed of which words are masked; another masks others, and so does another place
                of a text in the list. Of `mlm` alone.
            first: Place of the first of them, where they are a part of a list.
        """
        if self.task.kind == "mlm":
            return masked(self.tokens, self.task.masking, examples, self.limit, draw, first)
        if self.task.kind == "tagging":
            return tagged(self.tokens, self.task, examples, self.limit)
        pattern = self.task.patterns[self.pattern] if self.cloze else ""
        filled = [
            self.tokens.cloze(pattern, example, self.limit)
            if self.cloze
            else self.tokens.plain(example, self.limit)
            for example in examples
        ]
        labels = self.labels(examples)
        return [replace(one, answers=[label]) for one, label in zip(filled, labels, strict=True)]

    def by_draw(self, examples: Sequence[Example]) -> Callable[[int], list[Prompt]]:
        """The prompts of any draw, of texts that are tokenized now and once, however many draws.

        Law: for each draw what `prompts` gives. Texts that are there several times are tokenized
        and held once.
        """
        distinct = list(dict.fromkeys(examples))
        if self.task.kind != "mlm":
            asked = dict(zip(distinct, self.prompts(distinct), strict=True))
            prompts = [asked[one] for one in examples]
            return lambda _: prompts
        known = {one: pieces_of(self.tokens, one, self.limit) for one in distinct}
        pieces = [known[one] for one in examples]
        return lambda draw: masked_in(self.tokens, self.task.masking, pieces, draw)

    def labels(self, examples: Sequence[Example]) -> list[int]:
        """Index of each text's label, -1 where it has none."""
        index = {label: number for number, label in enumerate(self.task.labels)}
        return [-1 if example.label is None else index[example.label] for example in examples]

    def batch(
        self,
        prompts: Sequence[Prompt],
        weights: Sequence[float] | None = None,
        offsets: np.ndarray | None = None,
    ) -> Batch:
        """Pad prompts to the longest of them.

        Args:
            prompts: Encoded texts.
            weights: Each text's, of all its answers; None: all have 1.
            offsets: See `Batch`.
        """
        width = max(len(prompt.ids) for prompt in prompts)
        ids = np.full((len(prompts), width), self.tokens.pad_id, np.int64)
        attention = np.zeros_like(ids)
        segments = np.zeros_like(ids) if any(one.segments for one in prompts) else None
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.ids)] = prompt.ids
            attention[row, : len(prompt.ids)] = 1
            if segments is not None and prompt.segments:
                segments[row, : len(prompt.ids)] = prompt.segments
        places = np.array([place for prompt in prompts for place in prompt.places], np.int64)
        answers = np.array([answer for prompt in prompts for answer in prompt.answers], np.int64)
        counts = [len(prompt.places) for prompt in prompts]
        weighed = None if weights is None else np.repeat(np.array(weights, np.float32), counts)
        texts = None if self.task.kind == "labels" else np.repeat(np.arange(len(prompts)), counts)
        return Batch(ids, attention, places, answers, weighed, offsets, texts, segments)

    def by_length(
        self, examples: Sequence[Example], rows: int, tokens: int, draw: int = 0
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of texts of similar length, with the indices of their rows.

        A batch of short texts may have more rows than asked, never more tokens in all.

        Args:
            examples: The texts.
            rows: Texts of full length in one batch.
            tokens: Tokens of a text of full length.
            draw: See `prompts`.
        """
        prompts = PackedPrompts()
        for start in range(0, len(examples), TOGETHER):
            prompts.add(self.prompts(examples[start : start + TOGETHER], draw, start))
        lengths = [length + self.soft for length in prompts.lengths]
        order = sorted(range(len(lengths)), key=lambda row: lengths[row])
        room = rows * (tokens + self.soft)
        while order:
            chosen = order[: max(1, room // lengths[order[0]])]
            while len(chosen) > 1 and len(chosen) * lengths[chosen[-1]] > room:
                chosen.pop()
            order = order[len(chosen) :]
            yield chosen, self.batch([prompts[row] for row in chosen])
