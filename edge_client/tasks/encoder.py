"""Encodes a task's texts into batches of token ids for one base, and reports truncation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.accounting import Accounting
from smidgen.edge_client.texts.batches import Batch, PackedPrompts
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.texts.tokens import Prompt, Tokens

TOGETHER = 256  # texts whose prompts are lists at once, where there may be many
LOOKED_AT = 2_000  # texts of a part: whoever has millions does not wait until all are tokenized


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
        pattern: Which of the patterns that are asked is filled.

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
        for pattern in self.task.asked(self.tokens.is_causal):
            self.tokens.room(pattern, self.limit)

    @property
    def is_filled(self) -> bool:
        """Whether texts are put into a pattern."""
        return self.cloze and kind_of(self.task).has_patterns

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
        return kind_of(self.task).prompts(self, examples, draw, first)

    def by_draw(self, examples: Sequence[Example]) -> Callable[[int], list[Prompt]]:
        """The prompts of any draw, of texts that are tokenized now and once, however many draws.

        Law: for each draw what `prompts` gives. Texts that are there several times are tokenized
        and held once.
        """
        return kind_of(self.task).by_draw(self, examples)

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
        answers = answers.reshape(len(places), -1) if len(answers) > len(places) else answers
        counts = [len(prompt.places) for prompt in prompts]
        weighed = None if weights is None else np.repeat(np.array(weights, np.float32), counts)
        is_one = kind_of(self.task).head(self.task).is_one_answer
        texts = None if is_one else np.repeat(np.arange(len(prompts)), counts)
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


@dataclass(frozen=True)
class Cut:
    """How much of a text is read.

    Attributes:
        tokens: What it has, about: of a very long one by its beginning.
        read: How many of these are read.
    """

    tokens: int
    read: int


def cut_of(encoder: Encoder, example: Example) -> Cut | None:
    """Where a text is cut; None if it is read to its end, or its task has patterns.

    Law: one that is read word by word is cut if and only if a word of it gets no answer.
    """
    kind = kind_of(encoder.task)
    if kind.has_patterns:
        return None
    words = kind.words_read(example)
    if words is not None:
        room = encoder.limit - sum(map(len, encoder.tokens.frame))
        pieces = encoder.tokens.words(words, room)
        if len(pieces) == len(words):
            return None
        read = sum(map(len, pieces))
        return Cut(max(read + 1, encoder.tokens.count(" ".join(words), room)), read)
    tokens, room = kind.length(encoder, example)
    return Cut(tokens, room) if tokens > room else None


def usable(encoder: Encoder, data: ClientData) -> tuple[ClientData, list[str]]:
    """The texts of which this base can be asked something, and a line for each part with others.

    These are counted as left out in what is known of the files' rows.
    """
    kind, parts, lines = kind_of(encoder.task), dict[str, tuple[Example, ...]](), list[str]()
    if not kind.may_refuse:
        return data, []
    for part, texts in (("labelled", data.labelled), ("test", data.test)):
        faults = {one: fault for one in texts if (fault := kind.fault(encoder, one))}
        parts[part] = tuple(one for one in texts if one not in faults)
        counted = Accounting(read=len(texts))
        rows = data.rows.get(part) or data.rows.get("unlabelled") or Accounting()
        for one in texts:
            if one in faults:
                for accounting in (counted, rows):
                    accounting.read -= 1
                    said = f"{one.file}, line {one.line}: {faults[one].said}"
                    accounting.leave_out(faults[one].reason, said)
        if counted.left_out:
            what = "train" if part == "labelled" else "test"
            lines.append(f"texts to {what} on: {counted}")
    return replace(data, labelled=parts["labelled"], test=parts["test"]), lines


def cuts_in_words(encoder: Encoder, data: ClientData, tokens: int) -> Iterator[str]:
    """A line for each part of a device's texts in which some are cut: how many, and the first.

    Of a part no more than its first texts are looked at.

    Args:
        encoder: Reads them.
        data: The texts.
        tokens: What the run allows; the base may allow less.
    """
    for what, texts in (("train", data.labelled), ("test", data.test)):
        cuts = [(one, cut) for one in texts[:LOOKED_AT] if (cut := cut_of(encoder, one))]
        if cuts:
            few = len(texts) <= LOOKED_AT
            looked_at = f"{len(texts)}" if few else f"the first {LOOKED_AT:,} of {len(texts):,}"
            yield _in_words(what, looked_at, cuts, can_more=encoder.limit >= tokens)


def _in_words(what: str, texts: str, cuts: Sequence[tuple[Example, Cut]], *, can_more: bool) -> str:
    first, cut = cuts[0]
    more = ", or give more --tokens" if can_more else "; this base reads no longer ones"
    return (
        f"{len(cuts)} of {texts} texts to {what} on are longer than what is read: the first, "
        f"{first.file}, line {first.line}, has about {cut.tokens} tokens, of which {cut.read} are "
        f"read; split them into shorter ones{more}"
    )
