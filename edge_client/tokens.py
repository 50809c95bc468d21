"""Texts and patterns to token ids, with the tokenizer of the base and without transformers.

A prompt is put together from pieces, so that only the text is ever cut to fit: the pattern and
its mask always stay whole.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from edge_client.tasks import MASK, SLOTS, Task, TaskError
from edge_client.texts import Example


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
    """

    ids: np.ndarray
    attention: np.ndarray
    mask_positions: np.ndarray
    labels: np.ndarray


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
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text()) if config_path.is_file() else {}
        self.mask_id = self._special(config.get("mask_token"), ("[MASK]", "<mask>"))
        self.pad_id = self._special(config.get("pad_token"), ("[PAD]", "<pad>"))

    def _special(self, configured: object, usual: Sequence[str]) -> int:
        if isinstance(configured, dict):  # older files keep a whole AddedToken here
            configured = configured.get("content")
        for token in (configured, *usual):
            if isinstance(token, str) and (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        raise TaskError(f"the base's tokenizer has no {usual[0]} token; a masked LM is expected")

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

    def label_word_ids(self, task: Task) -> list[int]:
        """One token id per label word, in label order.

        Raises:
            TaskError: A word is more than one token of this tokenizer, or unknown to it.
        """
        ids = []
        for label, word in zip(task.labels, task.words(), strict=True):
            found = self.encode(f" {word}")
            if len(found) != 1 or found[0] == self._tokenizer.token_to_id("[UNK]"):
                pieces = self._tokenizer.encode(f" {word}", add_special_tokens=False).tokens
                raise TaskError(
                    f"task {task.name!r}: label word {word!r} of {label!r} is {pieces} in this "
                    "base's tokenizer; choose a word that is one token"
                )
            ids.append(found[0])
        return ids

    def cloze(self, pattern: str, example: Example, limit: int) -> Prompt:
        """Fill a pattern; the text is cut so that at most `limit` tokens come out.

        Raises:
            TaskError: The pattern alone is longer than `limit`.
        """
        before, after = self.frame
        pieces = [self._piece(part, example) for part in SLOTS.split(pattern) if part.strip()]
        fixed = sum(len(ids) for ids, is_text in pieces if not is_text)
        room = limit - fixed - len(before) - len(after)
        if room < 1:
            raise TaskError(f"pattern {pattern!r} leaves no room for a text in {limit} tokens")
        texts = [len(ids) for ids, is_text in pieces if is_text]
        ids, mask_position = list(before), 0
        for piece, is_text in pieces:
            if piece == [self.mask_id]:
                mask_position = len(ids)
            ids += piece[: _share(room, texts, len(piece))] if is_text else piece
        return Prompt(ids + after, mask_position)

    def plain(self, example: Example, limit: int) -> Prompt:
        """A text (or pair) as a classifier reads it, cut to `limit` tokens; read at position 0."""
        before, after = self.frame
        ids = self.encode(example.text)
        if example.text_b:
            ids = ids[: limit // 2] + after[-1:] + self.encode(example.text_b)
        return Prompt(before + ids[: limit - len(before) - len(after)] + after, 0)

    def _piece(self, part: str, example: Example) -> tuple[list[int], bool]:
        if part == MASK:
            return [self.mask_id], False
        if SLOTS.fullmatch(part):
            return self.encode(" " + (example.text_b if part == "{text_b}" else example.text)), True
        return self.encode(part.rstrip()), False


@dataclass(frozen=True)
class Encoder:
    """How this task's texts become batches for this base.

    Attributes:
        tokens: The base's tokenizer.
        task: Patterns and labels.
        cloze: Whether the pattern is filled; else the plain text is read by a classifier.
        limit: Longest input in tokens.
        soft: Tokens of a soft prompt, which come before every text.
    """

    tokens: Tokens
    task: Task
    cloze: bool
    limit: int
    soft: int = 0

    def prompts(self, examples: Sequence[Example]) -> list[Prompt]:
        """Encode texts one by one."""
        if self.cloze:
            pattern = self.task.patterns[0]
            return [self.tokens.cloze(pattern, example, self.limit) for example in examples]
        return [self.tokens.plain(example, self.limit) for example in examples]

    def labels(self, examples: Sequence[Example]) -> list[int]:
        """Index of each text's label, -1 where it has none."""
        index = {label: number for number, label in enumerate(self.task.labels)}
        return [-1 if example.label is None else index[example.label] for example in examples]

    def batch(self, prompts: Sequence[Prompt], labels: Sequence[int]) -> Batch:
        """Pad prompts to the longest of them."""
        width = max(len(prompt.ids) for prompt in prompts)
        ids = np.full((len(prompts), width), self.tokens.pad_id, np.int64)
        attention = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.ids)] = prompt.ids
            attention[row, : len(prompt.ids)] = 1
        positions = np.array([prompt.mask_position for prompt in prompts], np.int64)
        return Batch(ids, attention, positions, np.array(labels, np.int64))

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
