"""Tokenization of texts and patterns with the base's own tokenizer, without transformers.

A prompt has the ids of its plain sentence (`patterns`), in which `[MASK]`, `<s>` and the like from
a text are ordinary characters (`control_words`). Only the text is cut to fit, never the pattern or
its mask. Of a long text only what may fit is read.
"""

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from smidgen.edge_client.errors import WrongInput, installing
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.control_words import (
    alias,
    content_of,
    marked,
    named_in,
    set_apart,
    unheard_of,
)
from smidgen.edge_client.texts.prompts.patterns import (
    MASK,
    Asking,
    TaskError,
    before_mask,
    fitted,
    label_words,
    refuse_control_words,
    slots_of,
    word_at_mask,
    word_behind,
    written,
)
from smidgen.edge_client.texts.vocabulary import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

    from smidgen.edge_client.texts.prompts.chat_template import ChatTemplate

LONGEST_PIECED = 1_000  # characters of a word that is tagged; what lies behind them is not read
TEMPLATE = "chat_template.jinja"  # where transformers 5 keeps it
BARE = b'"add_prefix_space":false'  # in the state of a splitting into bytes
CHARACTERS = 64  # of a text read at first for each token wanted; its tokens are seldom longer
REMEMBERED = 32_768  # prompts that are held where they are read again and again
Packed: TypeAlias = "tuple[array[int], int, array[int] | None]"  # ids, place, segments


@dataclass(frozen=True)
class Prompt:
    """One encoded input.

    Attributes:
        ids: Token ids, specials included.
        places: Index in `ids` where each answer is read: of a mask, of a word's first token, of the
            token before the one that is asked for, or 0 (the first special) where a classifier
            reads the whole; ascending.
        answers: Index of each right answer; -1 where unknown.
        segments: Of each id the number of its text, 1 for the second of a pair where the tokenizer
            counts so; None: 0 for all.
    """

    ids: list[int]
    places: list[int]
    answers: list[int]
    segments: list[int] | None = None

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
        folder: The base's folder; `tokenizer.json` and, if there, `tokenizer_config.json` and
            `chat_template.jinja`. Or a base of one file.
        held: Reads what such a file holds as the first two; None: they lie in the folder.
        is_causal: Whether the base answers by what stands before: then a pattern ends with its
            mask, and is read up to there.

    Raises:
        TokenizerError: One of them is damaged, or the first is gone.
    """

    def __init__(
        self,
        folder: Path,
        held: Callable[[], tuple[str, Mapping[str, Any]]] | None = None,
        *,
        is_causal: bool = False,
    ) -> None:
        self._folder, self._held, self.is_causal = folder, held, is_causal
        self._fixed: dict[str, int] = {}
        self._known: dict[tuple[object, ...], Packed] | None = None
        self._before_reading: Callable[[], None] = lambda: None
        self._read: Tokenizer | None = None
        self._config: Mapping[str, Any] = {}
        self._mark = unheard_of()
        self._stamp: tuple[int, int, int] | None = None  # of the file that was read
        self._aliases: dict[str, tuple[str, int, int]] = {}  # of control words, where they are such
        self._open()

    @property
    def _tokenizer(self) -> "Tokenizer":
        return self._read or self._open()

    def let_go(self, before_reading: Callable[[], None]) -> bool:
        """Hold the vocabulary no more until it is needed again; then it is read anew.

        Not where prompts are remembered. Law: ids are the same before and after; where the file is
        another one by then, `TokenizerError` is raised.

        Args:
            before_reading: Called before that, to give back other memory.

        Returns:
            Whether it was held.
        """
        if self._known is not None or self._read is None:
            return False
        self._read, self._before_reading, self._aliases = None, before_reading, {}
        return True

    def _open(self) -> "Tokenizer":
        self._before_reading()
        path = self._folder / "tokenizer.json" if self._held is None else self._folder
        try:
            status = path.stat()
            stamp = status.st_ino, status.st_size, status.st_mtime_ns
            if self._stamp not in (None, stamp):
                raise TokenizerError(f"{path} has changed while it was in use; start again")
            text, config = (None, configured(self._folder)) if self._held is None else self._held()
            config = config if self._stamp is None else self._config  # ids are those of before
            read = read_tokenizer(path if text is None else text)
            del text
        except WrongInput:
            raise
        except Exception as error:  # the library raises nothing else, and quotes the file
            raise TokenizerError(
                f"the tokenizer of base {self._folder} cannot be read; copy the base again"
            ) from error
        read.no_truncation()
        read.no_padding()
        self._read, self._config, self._stamp = read, config, stamp
        self._mask_id = self._find(config.get("mask_token"), ("[MASK]", "<mask>"))
        pad_id = self._find(config.get("pad_token"), ("[PAD]", "<pad>"))
        self.end_id = self._find(config.get("eos_token"), ())
        pad_id = self.end_id if pad_id is None else pad_id
        self.pad_id = self._needed(pad_id, "[PAD]")  # of decoders often none: what ends a text
        self.unknown_id = self._find(config.get("unk_token"), ("[UNK]", "<unk>"))
        self.size = int(read.get_vocab_size())  # added tokens included
        frame = read.encode("").ids
        frame += [] if self._mask_id is None else [self._mask_id]
        own = {str(read.id_to_token(id_)) for id_ in frame}
        self._control_words = set_apart(read, own | named_in(config), self.unknown_id)
        self._mark_id = marked(read, self._mask_id, self._mark)
        self._splitting = read.pre_tokenizer
        inputs = config.get("model_input_names")
        self._has_segments = not isinstance(inputs, list) or "token_type_ids" in inputs
        return read

    def _find(self, configured: object, usual: Sequence[str]) -> int | None:
        for token in (content_of(configured), *usual):
            if isinstance(token, str) and (found := self._tokenizer.token_to_id(token)) is not None:
                return int(found)
        return None

    @staticmethod
    def _needed(found: int | None, usual: str) -> int:
        if found is None:
            raise TaskError(f"the base's tokenizer has no {usual} token; a masked LM is expected")
        return found

    @property
    def mask_id(self) -> int:
        """The mask's id.

        Raises:
            TaskError: There is none: the base is no masked language model.
        """
        return self._needed(self._mask_id, "[MASK]")

    @cached_property
    def template(self) -> "ChatTemplate":
        """The base's own chat template.

        Raises:
            TaskError: It has none, or one that is not a template; or jinja2 is not installed.
        """
        found = self._config.get("chat_template")
        if isinstance(found, list):  # several, each with a name
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            found = named.get("default")
        if not isinstance(found, str):
            raise TaskError(
                f"base {self._folder} has no chat template; take the model's instruction-tuned "
                "form, put a chat_template.jinja beside its tokenizer.json, or take "
                'kind = "completion"'
            )
        try:
            from smidgen.edge_client.texts.prompts.chat_template import ChatTemplate
        except ModuleNotFoundError as error:
            raise TaskError(f"a task of chats needs jinja2: {installing('templates')}") from error
        words = {key: content_of(one) for key, one in self._config.items() if key[-6:] == "_token"}
        return ChatTemplate(found, {key: word for key, word in words.items() if word}, self._folder)

    def hide(self, text: str, hidden: dict[str, str]) -> str:
        """A text with a stand-in for each control word, which `hidden` gets; see `asked_in`."""

        def stand_in(match: re.Match[str]) -> str:
            name = next((name for name, word in hidden.items() if word == match[0]), unheard_of())
            hidden[name] = match[0]
            return name

        return self._any_of(self._control_words).sub(stand_in, text)

    @staticmethod
    def _any_of(words: Iterable[str]) -> re.Pattern[str]:
        longest_first = sorted(words, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def asked_in(
        self, text: str, hidden: Mapping[str, str], spans: Sequence[tuple[int, int]]
    ) -> tuple[list[int], list[int]]:
        """Ids of a text in which control words are such, and which of its tokens lie in spans.

        Laws: without stand-ins the ids are those that transformers gives, no specials added; a
        token that is partly in a span is in it.

        Args:
            text: Read whole.
            hidden: Words in it that stand for others, in which a control word is plain text.
            spans: First character of each, and the one behind its last.
        """
        parts, last, edges, shifts = list[str](), 0, [0], [0]
        for match in self._any_of((*self._control_words, *hidden)).finditer(text):
            meant = hidden[match[0]] if match[0] in hidden else self._alias(match[0])
            parts += [text[last : match.start()], meant]
            last = match.end()
            edges.append(last)
            shifts.append(shifts[-1] + len(meant) - len(match[0]))

        def moved(place: int) -> int:
            return place + shifts[bisect_right(edges, place) - 1]

        found = self._tokenizer.encode("".join([*parts, text[last:]]), add_special_tokens=False)
        meant_by = {alias_id: id_ for _, alias_id, id_ in self._aliases.values()}
        asked = [(moved(first), moved(end)) for first, end in spans]
        places = [
            place
            for place, (first, end) in enumerate(
                found.offsets
            )  # of a blank maybe empty, at its end
            if any(start < end and (first < stop or first == end == stop) for start, stop in asked)
        ]
        return [meant_by.get(id_, id_) for id_ in found.ids], places

    def _alias(self, word: str) -> str:
        if word not in self._aliases:
            self._aliases[word] = alias(self._tokenizer, word)
        return self._aliases[word][0]

    @cached_property
    def frame(self) -> tuple[list[int], list[int]]:
        """The specials before and after a text, such as ([CLS], [SEP])."""
        ids = self._tokenizer.encode(self._mark).ids
        place = ids.index(self._mark_id)
        return ids[:place], ids[place + 1 :]

    def framed(self, ids: Sequence[int], places: Sequence[int], answers: Sequence[int]) -> Prompt:
        """A text's tokens between its specials.

        Args:
            ids: Of the text alone.
            places: Where in it something is asked.
            answers: The right ones.
        """
        before, after = self.frame
        moved = [len(before) + place for place in places]
        return Prompt([*before, *ids, *after], moved, list(answers))

    def remember(self) -> None:
        """Hold the prompts of the texts that are encoded from now on: one process for many clients.

        Law: the same ids. A device does without: it has its texts' prompts for as long as it
        trains, and memory for nothing else.
        """
        self._known = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text without specials."""
        return list(self._bare(text).ids)

    def _bare(self, text: str) -> "Encoding":
        return self._tokenizer.encode(text, add_special_tokens=False)

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

        Masks behind that are not asked. A mask is `[MASK]`, whatever the base's own is called.
        """
        room = self.plain_room(limit)
        start = _start(text, room * CHARACTERS).replace(MASK, self._mark)
        ids = self.encode(start)[:room]
        places = [place for place, id_ in enumerate(ids) if id_ == self._mark_id]
        return self.framed(self._asked(ids), places, [-1] * len(places))

    def _asked(self, ids: Sequence[int]) -> list[int]:
        """Ids with the base's own mask where the mark is."""
        return [self.mask_id if id_ == self._mark_id else id_ for id_ in ids]

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

        Law: those that transformers gives words one by one (`is_split_into_words`; byte-level
        tokenizers with `add_prefix_space`, as it asks for). A word that the tokenizer drops is an
        unknown one, so that none is lost; of a first word that does not fit, the start is kept.
        """
        asked, usual = [word[:LONGEST_PIECED] for word in words[:room]], self._splitting
        self._tokenizer.pre_tokenizer = self._splitting_words
        encoded = self._tokenizer.encode_batch(asked, add_special_tokens=False)
        self._tokenizer.pre_tokenizer = usual
        found: list[list[int]] = []
        left = room
        for one in encoded:
            ids = list(one.ids) or [self._unknown]
            if len(ids) > left:
                break
            left -= len(ids)
            found.append(ids)
        return found or [list(one.ids[:room]) or [self._unknown] for one in encoded[:1]]

    @cached_property
    def _splitting_words(self) -> Any:
        """The splitting that puts a space before each word where bytes count spaces."""
        found = deepcopy(self._splitting)
        if found is not None:
            spaced = found.__getstate__().replace(BARE, BARE.replace(b"false", b"true"))
            found.__setstate__(spaced)
        return found

    @property
    def _unknown(self) -> int:
        """The id of what the tokenizer does not know; a mask where there is none."""
        masked = self.pad_id if self._mask_id is None else self._mask_id
        return masked if self.unknown_id is None else self.unknown_id

    @cached_property
    def control_ids(self) -> frozenset[int | None]:
        """Ids of the tokens that the tokenizer calls special."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        return frozenset(id_ for id_, one in added if one.special)

    @cached_property
    def ordinary_ids(self) -> list[int]:
        """Ids that are no specials and not unknown, ascending."""
        special = self.control_ids | {self._mask_id, self.pad_id, self.unknown_id or 0}
        return [id_ for id_ in range(self.size) if id_ not in special]

    def text_of(self, ids: Iterable[int]) -> str:
        """A text of these tokens without specials; read again it may have a few other ones."""
        return str(self._tokenizer.decode([int(index) for index in ids]))

    def first_ids(self, text: str, limit: int) -> list[int]:
        """The first `limit` ids of a text without specials, however long the text is.

        The same as `encode(text)[:limit]` for texts of words, since a text is cut between two.
        """
        return self.encode(self._enough(text, limit))[:limit]

    def label_word_ids(self, task: Asking) -> list[list[int]]:
        """The token ids of each label word, in label order.

        A word of several tokens answers by the mean of their log-probabilities at the one mask
        (as in OpenPrompt). They share that mask's normalizer, so up to a constant, which the
        softmax over labels drops, this is the mean of their logits, and that is what one row of
        the head gives: the mean of the tokens' rows, with the mean of their biases.

        The ids are those that it has in the written sentence, in the mask's place. A causal base
        is asked for the first of them alone, which is what it would write next.

        Raises:
            TaskError: A word is unknown to this tokenizer, a control word, without ids of its own,
                or of others in another pattern that is asked; or two labels have the same.
        """

        def word_at(pattern: str, word: str) -> list[int] | None:
            if self.is_causal:
                return word_behind(self._bare, pattern, word)
            return word_at_mask(self._tokenizer.encode, pattern, word, self._mark)

        return label_words(
            word_at, task, self._control_words, self.unknown_id, is_causal=self.is_causal
        )

    def room(self, pattern: str, limit: int) -> int:
        """Tokens that a pattern leaves for its texts in a prompt of `limit`, at least one per text.

        Raises:
            TaskError: Fewer, or a pattern that this tokenizer cannot read.
        """
        left = limit - self._fixed_part(pattern)
        if left < len(slots_of(pattern)):
            raise _no_room(pattern, limit)
        return left

    def _fixed_part(self, pattern: str) -> int:
        """Tokens of a pattern without its texts, specials included."""
        if pattern not in self._fixed:
            refuse_control_words(pattern, self._control_words)
            slots = slots_of(pattern)
            contents = {**dict.fromkeys(slots, "a"), MASK: self._mark}
            asked = before_mask(pattern) if self.is_causal else pattern
            sentence = written(self._tokenizer.encode, asked, contents)
            if not self.is_causal and sentence.found.ids.count(self._mark_id) != 1:
                raise TaskError(
                    f"pattern {pattern!r:.200}: this base's tokenizer reads a mask only between "
                    f"spaces; put one before and behind {MASK}"
                )
            texts = sum(len(sentence.tokens_of(slot)) for slot in slots)
            self._fixed[pattern] = len(sentence.found.ids) - texts
        return self._fixed[pattern]

    def plain_room(self, limit: int) -> int:
        """Tokens that an input of `limit` leaves for a text without a pattern, at least one.

        Raises:
            TaskError: None.
        """
        left = limit - sum(map(len, self.frame))
        if left < 1:
            raise _no_room_plain(limit)
        return left

    def cloze(self, pattern: str, example: Example, limit: int) -> Prompt:
        """Fill a pattern; the text is cut so that at most `limit` tokens come out.

        Laws: the ids are those of the written sentence, with the text or what is kept of its
        beginning, and the base's mask in place of [MASK]; a pair in one pattern is one sentence.
        For a causal base they are those before the mask, and the last of them is where it answers.

        Raises:
            TaskError: The pattern alone is longer than `limit`.
        """
        key = (pattern, example.text, example.text_b, limit)
        return self._once(key, lambda: self._cloze(pattern, example, limit))

    def _cloze(self, pattern: str, example: Example, limit: int) -> Prompt:
        room, slots = self.room(pattern, limit), slots_of(pattern)
        texts = {slot: example.text_b if slot == "{text_b}" else example.text for slot in slots}
        contents = {slot: self._enough(text, room) for slot, text in texts.items()}
        asked = before_mask(pattern) if self.is_causal else pattern
        contents[MASK] = self._mark
        sentence = fitted(self._tokenizer.encode, asked, contents, slots, limit)
        if sentence is None:
            raise _no_room(pattern, limit)
        if self.is_causal:
            ids = sentence.found.ids[: len(sentence.found.ids) - len(self.frame[1])]
            return Prompt(ids, [len(ids) - 1], [-1])
        return self._prompt(sentence.found, sentence.found.ids.index(self._mark_id))

    def plain(self, example: Example, limit: int) -> Prompt:
        """A text (or pair) as a classifier reads it, cut to `limit` tokens; read at position 0.

        Law: what transformers' tokenizer gives with `truncation="longest_first"`.

        Raises:
            TaskError: The limit leaves no room for a pair.
        """
        key = (example.text, example.text_b, limit)
        return self._once(key, lambda: self._plain(example, limit))

    def _plain(self, example: Example, limit: int) -> Prompt:
        first, second = self._enough(example.text, limit), self._enough(example.text_b, limit)
        is_pair = bool(second)
        if limit < self._tokenizer.num_special_tokens_to_add(is_pair) + 1 + is_pair:
            raise _no_room_plain(limit)
        self._tokenizer.enable_truncation(limit)
        try:
            found = self._tokenizer.encode(first, second or None)
        finally:
            self._tokenizer.no_truncation()
        return self._prompt(found, 0)

    def _prompt(self, found: "Encoding", place: int) -> Prompt:
        has_more = self._has_segments and any(found.type_ids)
        segments = list(found.type_ids) if has_more else None
        return Prompt(self._asked(found.ids), [place], [-1], segments)

    def _once(self, key: tuple[object, ...], make: Callable[[], Prompt]) -> Prompt:
        """A prompt, from what is remembered if it is in there."""
        if self._known is None:
            return make()
        if key not in self._known:
            prompt = make()
            segments = None if prompt.segments is None else array("b", prompt.segments)
            packed = array("i", prompt.ids), prompt.mask_position, segments
            if len(self._known) >= REMEMBERED:
                return prompt
            self._known[key] = packed
        ids, place, parts = self._known[key]
        return Prompt(ids.tolist(), [place], [-1], None if parts is None else parts.tolist())

    def _enough(self, text: str, room: int) -> str:
        """A text, or as much of its beginning as has `room` tokens, however long it is."""
        length = room * CHARACTERS
        while length < len(text):
            start = _start(text, length)
            if len(self.encode(start)) >= room:
                return start
            length *= 2
        return text


def _no_room(pattern: str, limit: int) -> TaskError:
    return TaskError(
        f"pattern {pattern!r} leaves no room for a text in {max(limit, 0)} tokens; shorten it or a "
        "soft prompt, or raise --tokens"
    )


def _no_room_plain(limit: int) -> TaskError:
    return TaskError(
        f"{max(limit, 0)} tokens leave no room for a text beside this base's specials; shorten a "
        "soft prompt, or raise --tokens"
    )


def configured(folder: Path) -> dict[str, Any]:
    """What a base says of its tokenizer beside it; nothing in many."""
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_bytes()) if path.is_file() else {}
        json.dumps(config, ensure_ascii=False).encode()  # half a surrogate pair is no token's name
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read; copy the base again") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} holds no JSON object; copy the base again")
    template = folder / TEMPLATE
    try:
        return config | (
            {"chat_template": template.read_text("utf-8")} if template.is_file() else {}
        )
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{template} cannot be read; copy the base again") from error


def _start(text: str, length: int) -> str:
    """A text, or the start of a longer one without its last word, which may be cut."""
    if len(text) <= length:
        return text
    words = text[:length].rsplit(None, 1)
    return words[0] if len(words) == 2 else text[:length]
