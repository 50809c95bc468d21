"""Texts and patterns to token ids, with the tokenizer of the base and without transformers.

A prompt is put together from pieces, so that only the text is ever cut to fit: the pattern and
its mask always stay whole. Of a long text only what may fit is read.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edge_client.errors import WrongInput
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


class TokenizerError(WrongInput):
    """A base's tokenizer that cannot be read."""


class Tokens:
    """A base's tokenizer with the few ids that prompts need.

    Args:
        folder: The base's folder; `tokenizer.json` and, if there, `tokenizer_config.json`.

    Raises:
        TokenizerError: It is gone or damaged.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # only where there are texts, so that `--help` is quick

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing else, and quotes the file
            raise TokenizerError(
                f"the tokenizer of base {folder} cannot be read; copy the base again"
            ) from error
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

    def text_of(self, ids: Iterable[int]) -> str:
        """A text of these tokens without specials; read again it may have a few other ones."""
        return str(self._tokenizer.decode([int(index) for index in ids]))

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
        """Tokens that a pattern leaves for its texts in a prompt of `limit`, at least one per text.

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
