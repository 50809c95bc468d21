"""Texts and patterns to token ids, with the tokenizer of the base and without transformers.

A prompt is put together from pieces, so that only the text is ever cut to fit: the pattern and
its mask always stay whole. Of a long text no more is read than may fit.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from edge_client.texts.examples import Example
from edge_client.texts.tasks import MASK, SLOTS, Task, TaskError

CHARACTERS = 64  # of a text read at first for each token wanted; its tokens are seldom longer


@dataclass(frozen=True)
class Prompt:
    """One encoded input.

    Attributes:
        ids: Token ids, specials included.
        mask_position: Index of the mask in `ids`; 0 (the first special) without a mask.
    """

    ids: list[int]
    mask_position: int


@dataclass(frozen=True)
class Batch:
    """Encoded inputs of equal padded length.

    Attributes:
        ids: Token ids, int64, shape (batch, tokens); padded on the right.
        attention: 1 for real tokens, int64, shape (batch, tokens).
        mask_positions: Where the answer is read, int64, shape (batch,).
        labels: Index of the label, int64, shape (batch,); -1 where unknown.
        weights: Of each text in the loss, float32, shape (batch,); None: every one has 1.
    """

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None


class Tokens:
    """A base's tokenizer with the few ids that prompts need.

    Args:
        folder: The base's folder; `tokenizer.json` and, if there, `tokenizer_config.json`.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # only where there are texts, so that `--help` is quick

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._split: dict[str, list[tuple[str, list[int]]]] = {}
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text()) if config_path.is_file() else {}
        self.mask_id = self._special(config.get("mask_token"), ("[MASK]", "<mask>"))
        self.pad_id = self._special(config.get("pad_token"), ("[PAD]", "<pad>"))
        self.unknown_id = self._find(config.get("unk_token"), ("[UNK]", "<unk>"))

    def _find(self, configured: object, usual: Sequence[str]) -> int | None:
        if isinstance(configured, dict):  # older files keep a whole AddedToken here
            configured = configured.get("content")
        for token in (configured, *usual):
            if isinstance(token, str) and (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        return None

    def _special(self, configured: object, usual: Sequence[str]) -> int:
        found = self._find(configured, usual)
        if found is None:
            raise TaskError(
                f"the base's tokenizer has no {usual[0]} token; a masked LM is expected"
            )
        return found

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The specials before and after a text, such as ([CLS], [SEP])."""
        ids = self._tokenizer.encode("", add_special_tokens=True).ids
        half = (len(ids) + 1) // 2
        return ids[:half], ids[half:]

    @property
    def size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Ids of a text without specials."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def first_ids(self, text: str, limit: int) -> list[int]:
        """The first `limit` ids of a text without specials, however long the text is.

        The same as `encode(text)[:limit]` for texts of words, since a text is cut between two.
        """
        length = limit * CHARACTERS
        while length < len(text):
            ids = self.encode(_whole_words(text[:length]))
            if len(ids) >= limit:
                return ids[:limit]
            length *= 2
        return self.encode(text)[:limit]

    def label_word_ids(self, task: Task) -> list[list[int]]:
        """The token ids of each label word, in label order.

        A word of several tokens answers by the mean of their log-probabilities at the one mask
        (as in OpenPrompt). They share that mask's normalizer, so up to a constant, which the
        softmax over labels drops, this is the mean of their logits, and that is what one row of
        the head gives: the mean of the tokens' rows, with the mean of their biases.

        Raises:
            TaskError: A word has no token or one unknown to this tokenizer, or two labels have
                the same tokens; names task, label and word.
        """
        whose: dict[tuple[int, ...], str] = {}
        for label, word in zip(task.labels, task.words(), strict=True):
            ids, named = tuple(self.encode(f" {word}")), f"task {task.name!r}: label word {word!r}"
            if not ids or self.unknown_id in ids:
                raise TaskError(
                    f"{named} of {label!r} is unknown to this base's tokenizer; choose another word"
                )
            if ids in whose:
                raise TaskError(
                    f"{named} of {label!r} is to this base's tokenizer the same as the word of "
                    f"{whose[ids]!r}; choose another word"
                )
            whose[ids] = label
        return [list(ids) for ids in whose]

    def room(self, pattern: str, limit: int) -> int:
        """Tokens that a pattern leaves for its texts in a prompt of `limit`, at least one a text.

        Raises:
            TaskError: Fewer.
        """
        parts = self._parts(pattern)
        texts = sum(_is_text(part) for part, _ in parts)
        left = limit - sum(len(ids) for _, ids in parts) - sum(map(len, self.frame))
        if left < texts:
            raise TaskError(
                f"pattern {pattern!r} leaves no room for a text in {max(limit, 0)} tokens; shorten "
                "it or a soft prompt, or raise --tokens"
            )
        return left

    def cloze(self, pattern: str, example: Example, limit: int) -> Prompt:
        """Fill a pattern; the text is cut so that at most `limit` tokens come out.

        Raises:
            TaskError: The pattern alone is longer than `limit`.
        """
        before, after = self.frame
        room = self.room(pattern, limit)
        parts = self._parts(pattern)
        texts = {part: self._text(part, example, room) for part, _ in parts if _is_text(part)}
        lengths = [len(text) for text in texts.values()]
        ids, mask_position = list(before), 0
        for part, piece in parts:
            if part == MASK:
                mask_position = len(ids)
            text = texts.get(part, [])
            ids += piece + text[: _share(room, lengths, len(text))]
        return Prompt(ids + after, mask_position)

    def plain(self, example: Example, limit: int) -> Prompt:
        """A text (or pair) as a classifier reads it, cut to `limit` tokens; read at position 0."""
        before, after = self.frame
        ids = self.first_ids(example.text, limit)
        if example.text_b:
            ids = ids[: limit // 2] + after[-1:] + self.first_ids(example.text_b, limit)
        return Prompt(before + ids[: limit - len(before) - len(after)] + after, 0)

    def _parts(self, pattern: str) -> list[tuple[str, list[int]]]:
        """A pattern's pieces in order, with their ids; a text's are not known yet."""
        if pattern not in self._split:
            parts = [part for part in SLOTS.split(pattern) if part.strip()]
            self._split[pattern] = [(part, self._fixed(part)) for part in parts]
        return self._split[pattern]

    def _fixed(self, part: str) -> list[int]:
        if _is_text(part):
            return []
        return [self.mask_id] if part == MASK else self.encode(part.rstrip())

    def _text(self, part: str, example: Example, room: int) -> list[int]:
        text = example.text_b if part == "{text_b}" else example.text
        return self.first_ids(f" {text}", room)


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
        return Batch(ids, attention, positions, np.array(labels, np.int64), weighed)

    def by_length(
        self, examples: Sequence[Example], rows: int, tokens: int
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of texts of similar length, with the indices of their rows.

        A batch of short texts may have more rows than asked, never more tokens in all.

        Args:
            examples: The texts.
            rows: Texts of full length in one batch.
            tokens: Of a text of full length.
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


def _share(room: int, texts: Sequence[int], length: int) -> int:
    """Tokens one text may keep: all of them if all fit, else the shorter one first."""
    if sum(texts) <= room or len(texts) == 1:
        return min(length, room)
    half = room // 2
    others = sum(texts) - length
    return min(length, room - others if others < half else max(half, 1))


def _is_text(part: str) -> bool:
    return part != MASK and SLOTS.fullmatch(part) is not None


def _whole_words(start: str) -> str:
    """The start of a longer text without its last word, which may be cut."""
    words = start.rsplit(None, 1)
    return words[0] if len(words) == 2 else start
