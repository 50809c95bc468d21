"""Texts and patterns to token ids, with the tokenizer of the base and without transformers.

A prompt is put together from pieces, so that only the text is ever cut to fit: the pattern and
its mask always stay whole. Of a long text only what may fit is read.
"""

import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from edge_client.errors import WrongInput
from edge_client.texts.examples import Example
from edge_client.texts.tasks import MASK, SLOTS, Task, TaskError

LONGEST_PIECED = 100  # characters of a word that is tagged
CHARACTERS = 64  # of a text read at first for each token wanted; its tokens are seldom longer
REMEMBERED = 32_768  # texts whose ids are held where they are read again and again


@dataclass(frozen=True)
class Prompt:
    """One encoded input.

    Attributes:
        ids: Token ids, specials included.
        places: Index in `ids` of each answer: of a mask, of a word's first token, or 0 (the first
            special) where a classifier reads the whole; ascending.
        answers: Index of each right answer; -1 where unknown.
    """

    ids: list[int]
    places: list[int]
    answers: list[int]

    @property
    def mask_position(self) -> int:
        """The one place of an input that is asked one thing."""
        (place,) = self.places
        return place


class TokenizerError(WrongInput):
    """A base's tokenizer that cannot be read."""


class Tokens:
    """A base's tokenizer with the few ids that prompts need.

    Args:
        folder: The base's folder; `tokenizer.json` and, if there, `tokenizer_config.json`.

    Raises:
        TokenizerError: One of them is damaged, or the first is gone.
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
        self._known: Callable[[str], array[int]] | None = None
        config = _configured(folder)
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

    def remember(self) -> None:
        """Hold the ids of the texts that are encoded from now on: one process for many clients.

        Law: the same ids. A device does without: it has its texts' prompts for as long as it
        trains, and memory for nothing else.
        """
        tokenizer = self._tokenizer  # not of `self`, which would hold itself then

        @lru_cache(REMEMBERED)
        def known(text: str) -> "array[int]":
            return array("i", tokenizer.encode(text, add_special_tokens=False).ids)

        self._known = known

    def encode(self, text: str) -> list[int]:
        """Ids of a text without specials."""
        if self._known is not None:
            return self._known(text).tolist()
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def pieces(self, text: str, room: int) -> tuple[list[int], list[int]]:
        """A text's first ids, at most `room`, and of each the number of its word; no specials.

        Of a long text no more is read than may fit. One that the tokenizer drops is unknown.
        """
        found = self._tokenizer.encode(text[: room * CHARACTERS], add_special_tokens=False)
        ids = list(found.ids[:room])
        words = [-1 - place if word is None else word for place, word in enumerate(found.word_ids)]
        return (ids, words[: len(ids)]) if ids else ([self._unknown], [0])

    def gaps(self, text: str, limit: int) -> Prompt:
        """A text as a language model reads it, cut to `limit` tokens, asked at each of its masks.

        Masks behind that are not asked.
        """
        (before, after), first, *rest = self.frame, *text.split(MASK)
        room, places = limit - len(before) - len(after), list[int]()
        ids = self.first_ids(first.rstrip() if rest else first, room)
        for number, part in enumerate(rest, start=1):
            if len(ids) >= room:
                break
            places.append(len(before) + len(ids))
            is_last = number == len(rest)
            more = self.first_ids(part if is_last else part.rstrip(), room) if part.strip() else []
            ids = [*ids, self.mask_id, *more]
        return Prompt([*before, *ids[:room], *after], places, [-1] * len(places))

    def word_of(self, id_: int) -> str:
        """A token as people read it, without what marks that it begins or goes on with a word."""
        return self.text_of([id_]).removeprefix("##").strip()

    def count(self, text: str, room: int) -> int:
        """How many ids a text has, without specials; more than `room` as `pieces` cuts it there.

        Exact up to `room` tokens of usual length; of a longer text about, by its beginning.
        """
        start = text[: max(1, room) * CHARACTERS]
        found = len(self.encode(start))
        if len(start) == len(text):
            return found
        return max(room + 1, round(found * len(text) / len(start)))

    def words(self, words: Sequence[str], room: int) -> list[list[int]]:
        """Ids of each of a text's words, as many whole ones as fit into `room`, and one at least.

        A word that the tokenizer drops is an unknown one, so that none is lost; of a first word
        that does not fit, the start is kept.
        """
        asked = words[:room]
        encoded = self._tokenizer.encode_batch(
            [f" {word[:LONGEST_PIECED]}" for word in asked], add_special_tokens=False
        )
        found: list[list[int]] = []
        left = room
        for one in encoded:
            ids = list(one.ids) or [self._unknown]
            if len(ids) > left:
                break
            left -= len(ids)
            found.append(ids)
        return found or [list(one.ids[:room]) or [self._unknown] for one in encoded[:1]]

    @property
    def _unknown(self) -> int:
        """The id of what the tokenizer does not know; a mask where there is none."""
        return self.mask_id if self.unknown_id is None else self.unknown_id

    @cached_property
    def ordinary_ids(self) -> list[int]:
        """Ids that are no specials and not unknown, ascending."""
        special = {int(id_) for id_, one in self._added() if one.special}
        special |= {self.mask_id, self.pad_id, self.unknown_id or 0}
        return [id_ for id_ in range(self.size) if id_ not in special]

    def _added(self) -> Iterable[tuple[int, Any]]:
        return self._tokenizer.get_added_tokens_decoder().items()

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

    def plain_room(self, limit: int) -> int:
        """Tokens that an input of `limit` leaves for a text without a pattern, at least one.

        Raises:
            TaskError: None.
        """
        left = limit - sum(map(len, self.frame))
        if left < 1:
            raise TaskError(
                f"{max(limit, 0)} tokens leave no room for a text beside this base's specials; "
                "shorten a soft prompt, or raise --tokens"
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
        return Prompt(ids + after, [mask_position], [-1])

    def plain(self, example: Example, limit: int) -> Prompt:
        """A text (or pair) as a classifier reads it, cut to `limit` tokens; read at position 0."""
        before, after = self.frame
        ids = self.first_ids(example.text, limit)
        if example.text_b:
            ids = ids[: limit // 2] + after[-1:] + self.first_ids(example.text_b, limit)
        return Prompt(before + ids[: limit - len(before) - len(after)] + after, [0], [-1])

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


def _configured(folder: Path) -> dict[str, Any]:
    """What a base says of its tokenizer beside it; nothing in many."""
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_bytes()) if path.is_file() else {}
        json.dumps(config, ensure_ascii=False).encode()  # half a surrogate pair is no token's name
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read; copy the base again") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} holds no JSON object; copy the base again")
    return config


def _is_text(part: str) -> bool:
    return part != MASK and SLOTS.fullmatch(part) is not None


def _whole_words(start: str) -> str:
    """The start of a longer text without its last word, which may be cut."""
    words = start.rsplit(None, 1)
    return words[0] if len(words) == 2 else start
