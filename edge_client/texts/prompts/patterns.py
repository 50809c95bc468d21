"""Fills a pattern with texts: one sentence, which is tokenized as a whole.

For most tokenizers a word's ids depend on its neighbours, so sentences are never concatenated from
tokens. If one is too long, its texts are cut, in characters, and it is tokenized again.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from smidgen.edge_client.errors import WrongInput, demand

if TYPE_CHECKING:
    from tokenizers import Encoding

MASK = "[MASK]"
SLOTS = re.compile(r"(\[MASK\]|\{text(?:_a|_b)?\})")
Span: TypeAlias = tuple[int, int]
Read: TypeAlias = "Callable[[str], Encoding]"
SAMPLES = ("a", "B7", "!", "日")  # texts beside which a label word has to have the same ids


class TaskError(WrongInput):
    """A task whose labels, patterns or verbalizer do not fit together."""


class Asking(Protocol):
    """What of a task its label words are found by; every `Task` is one."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    def words(self) -> tuple[str, ...]:
        """Label words in label order."""

    def asked(self, is_causal: bool = False) -> tuple[str, ...]:
        """The patterns in use."""


@dataclass(frozen=True)
class Sentence:
    """A pattern with something in each of its slots.

    Attributes:
        text: What a person would write.
        spans: Where each slot's content lies in it, in characters.
        found: Its tokens.
    """

    text: str
    spans: Mapping[str, Span]
    found: "Encoding"

    def tokens_of(self, slot: str) -> list[int]:
        """Places of the tokens that lie in a slot's content, spaces before them aside."""
        start, end = self.spans[slot]
        return [place for place, (first, last) in self._own() if start <= first and last <= end]

    def word_in(self, slot: str, before: int = 0, behind: int = 0) -> list[int] | None:
        """The ids of a slot's content; None where a token of it holds something else as well.

        Also None where a character of the content, or beside it, belongs to no token: BPE without
        an unknown token leaves such characters out and shifts the offsets of those behind them.

        Args:
            slot: The mask's.
            before: So many spaces before it are its own, as they are the mask's.
            behind: As many behind it.
        """
        start, end = self.spans[slot]
        found, covered = list[int](), set[int]()
        for place, (first, last) in self._own():
            covered |= {*range(first, last)}
            if first < end and last > start:  # of the word
                if first < start or last > end:
                    return None
                found.append(self.found.ids[place])
            is_beside = start - before < last <= start or end < last <= end + behind
            if is_beside and not self.text[first:last].strip():  # spaces alone
                found.append(self.found.ids[place])
        joined = self.text[start:end] + self.text[end:].partition(" ")[0]
        if found and any(at not in covered for at, c in enumerate(joined, start) if c.strip()):
            return None
        return found

    def _own(self) -> list[tuple[int, Span]]:
        """Each token but the tokenizer's own ones, and where it lies without spaces around it."""
        found = []
        tokens = zip(self.found.offsets, self.found.special_tokens_mask, strict=True)
        for place, ((start, end), is_special) in enumerate(tokens):
            piece = self.text[start:end]
            if piece.strip():
                end -= len(piece) - len(piece.rstrip())
                start += len(piece) - len(piece.lstrip())
            if not is_special:
                found.append((place, (start, end)))
        return found


def slots_of(pattern: str) -> list[str]:
    """The slots of a pattern that take texts, in their order."""
    return [slot for slot in SLOTS.findall(pattern) if slot != MASK]


def refuse_control_words(pattern: str, control_words: Iterable[str]) -> None:
    """Refuse a pattern that spells a control word of the base.

    Raises:
        TaskError: Names it.
    """
    parts = SLOTS.split(pattern)[::2]
    for word in sorted(control_words):
        if any(word in part for part in parts):
            raise TaskError(
                f"pattern {pattern!r:.200} holds {word}, a control word of this base's tokenizer; "
                "leave it out"
            )


def written(read: Read, pattern: str, contents: Mapping[str, str]) -> Sentence:
    """A pattern with a content in each slot, the mask's included."""
    text, spans = "", {}
    for part in SLOTS.split(pattern):
        if part in contents:
            spans[part] = (len(text), len(text) + len(contents[part]))
        text += contents.get(part, part)
    return Sentence(text, spans, read(text))


def fitted(
    read: Read, pattern: str, contents: Mapping[str, str], slots: Sequence[str], limit: int
) -> Sentence | None:
    """As `written`, some contents cut at the end so that at most `limit` tokens come out.

    Laws: the ids are those of the sentence with the beginnings that were kept; each ends where a
    token does; what fits stays whole. Of two texts that do not fit the shorter one is kept first.

    Args:
        read: Gives a sentence's tokens.
        pattern: The pattern.
        contents: Of each slot.
        slots: Those that may be cut.
        limit: Tokens, specials included.

    Returns:
        None if even without these contents it has more.
    """
    whole = written(read, pattern, contents)
    if len(whole.found.ids) <= limit:
        return whole
    places = {slot: whole.tokens_of(slot) for slot in slots}
    lengths = {slot: len(found) for slot, found in places.items()}
    room = limit - (len(whole.found.ids) - sum(lengths.values()))
    bounded = [min(length, max(room, 0)) for length in lengths.values()]
    kept = {slot: _share(room, bounded, lengths[slot]) for slot in slots}
    while True:
        cut = {slot: _beginning(whole, contents[slot], slot, places[slot], kept) for slot in slots}
        sentence = written(read, pattern, {**contents, **cut})
        over = len(sentence.found.ids) - limit
        if over <= 0:
            return sentence
        longest = max(slots, key=lambda slot: kept[slot])
        if not kept[longest]:
            return None
        kept[longest] = max(0, kept[longest] - over)


def _beginning(
    whole: Sentence, content: str, slot: str, places: Sequence[int], kept: Mapping[str, int]
) -> str:
    count = kept[slot]
    if count >= len(places):
        return content
    return content[: whole.found.offsets[places[count - 1]][1] - whole.spans[slot][0]] * (count > 0)


def _share(room: int, texts: Sequence[int], length: int) -> int:
    """Tokens one text may keep: all of them if all fit, else the shorter one first."""
    if sum(texts) <= room or len(texts) == 1:
        return max(0, min(length, room))
    half = room // 2
    others = sum(texts) - min(length, room)
    return max(0, min(length, room - others if others < half else max(half, 1)))


def word_at_mask(read: Read, pattern: str, word: str, mark: str) -> list[int] | None:
    """The ids that a word has in a pattern's sentence, in the mask's place.

    Spaces that the mask takes in are the word's, where they are tokens of their own.

    Args:
        read: Gives a sentence's tokens.
        pattern: The pattern.
        word: The word.
        mark: What marks the mask's place.

    Returns:
        None where it has no ids of its own: they depend on the text, or belong to more than it.
    """
    parts = SLOTS.split(pattern)
    place = parts.index(MASK)
    before, behind = parts[place - 1], parts[place + 1]
    is_followed = place + 2 < len(parts)
    if (place > 1 and not before) or (is_followed and not behind):  # a text touches it
        return None
    spaced, bare = list[list[int] | None](), list[list[int] | None]()
    for sample in SAMPLES:
        contents = dict.fromkeys(slots_of(pattern), sample)
        masked = written(read, pattern, {**contents, MASK: mark})
        start, end = masked.spans[MASK]
        first, last = next(span for span in masked.found.offsets if span[0] <= start < span[1])
        sentence = written(read, pattern, {**contents, MASK: word})
        taken = 0 if is_followed and not behind.strip() else last - end  # else the text's space
        spaced.append(sentence.word_in(MASK, start - first, taken))
        bare.append(sentence.word_in(MASK))
    for ids in (spaced, bare):  # with those spaces, or without where texts take them
        if all(one == ids[0] for one in ids):
            return ids[0]
    return None


def ends_with_mask(pattern: str) -> bool:
    """Whether a causal language model can be asked by it."""
    return pattern.rstrip().endswith(MASK)


def before_mask(pattern: str) -> str:
    """What of a pattern a causal language model reads: all before the mask, which ends it.

    Spaces before the mask are the word's, as in texts: most tokenizers begin a word with its space.

    Raises:
        TaskError: Something stands behind the mask, which such a model has not read by then.
    """
    if not ends_with_mask(pattern):
        raise TaskError(
            f"pattern {pattern!r:.200} goes on behind {MASK}; a causal language model answers by "
            f"what stands before: end the pattern with {MASK}, such as '{{text}} Topic: {MASK}'"
        )
    return pattern.partition(MASK)[0].rstrip(" ")


def word_behind(read: Read, pattern: str, word: str) -> list[int] | None:
    """The id with which a word begins behind what stands before a pattern's mask.

    Args:
        read: Gives a sentence's tokens.
        pattern: The pattern, which ends with the mask.
        word: The word.

    Returns:
        None where it has none of its own: it depends on the text, which may touch the mask, or
        belongs to more than the word, or is a space alone.
    """
    asked, found = before_mask(pattern), list[list[int]]()
    parts = SLOTS.split(pattern.partition(MASK)[0])
    if not parts[-1]:  # a text touches the mask
        return None
    for sample in SAMPLES:
        contents = dict.fromkeys(slots_of(pattern), sample)
        before = written(read, asked, contents).found.ids
        whole = written(read, pattern.rstrip(), {**contents, MASK: word})
        first = slice(len(before), len(before) + 1)
        blank = not all(whole.text[start:end].strip() for start, end in whole.found.offsets[first])
        if whole.found.ids[: len(before)] != before or blank:
            return None
        found.append(whole.found.ids[first])
    return found[0] if all(one == found[0] for one in found) else None


def label_words(
    word_at: Callable[[str, str], list[int] | None],
    task: Asking,
    control_words: Collection[str],
    unknown_id: int | None,
    *,
    is_causal: bool = False,
) -> list[list[int]]:
    """See `Tokens.label_word_ids`.

    Args:
        word_at: The ids of a word in a pattern, as `word_at_mask` or `word_behind` gives them.
        task: Its labels, words and patterns.
        control_words: The tokenizer's.
        unknown_id: Of what the tokenizer does not know.
        is_causal: Whether a word is asked for by its first token.
    """
    by = "the same first token" if is_causal else "the same tokens"
    whose: dict[tuple[int, ...], str] = {}
    for label, word in zip(task.labels, task.words(), strict=True):
        named = f"task {task.name!r}: label word {word!r} of {label!r}"
        if word.strip() == MASK or word.strip() in control_words:
            raise TaskError(f"{named} is a control word of this base's tokenizer; choose another")
        ids = tuple(_word_of(word_at, task, word.strip(), named, is_causal=is_causal))
        if not ids or unknown_id in ids:
            raise TaskError(f"{named} is unknown to this base's tokenizer; choose another word")
        if ids in whose:
            raise TaskError(
                f"{named} is asked by {by} of this base's tokenizer as the word of {whose[ids]!r}; "
                "choose another word"
            )
        whose[ids] = label
    return [list(ids) for ids in whose]


def _word_of(
    word_at: Callable[[str, str], list[int] | None],
    task: Asking,
    word: str,
    named: str,
    *,
    is_causal: bool,
) -> list[int]:
    """The ids of a label word in all patterns that are asked."""
    first, *others = task.asked(is_causal)
    known = word_at(first, word)
    apart = f"put a space before and behind {MASK}"
    alike = f"let all patterns of an ensemble have something before {MASK}, or nothing"
    if is_causal:
        apart = f"put a space before {MASK}, or none where that is a token by itself"
        alike = f"let all patterns of an ensemble have the same signs right before {MASK}"
    for pattern in (first, *others):
        ids = word_at(pattern, word)
        if ids is None:
            raise TaskError(
                f"{named} runs into what stands beside {MASK} in pattern {pattern!r:.200} for this "
                f"base's tokenizer; {apart}"
            )
        if ids != known:
            raise TaskError(
                f"{named} has other tokens in pattern {pattern!r:.200} than in {first!r:.200}; "
                f"{alike}"
            )
    return known or []


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that has not exactly one mask and each text slot once.

    Raises:
        TaskError: Says what the pattern lacks.
    """
    slots = SLOTS.findall(pattern)
    texts = [slot for slot in slots if slot != MASK]
    demand(slots.count(MASK) == 1, f"pattern {pattern!r:.200} needs exactly one {MASK}", TaskError)
    if not texts or len(set(texts)) != len(texts) or ("{text}" in texts and len(texts) > 1):
        raise TaskError(
            f"pattern {pattern!r:.200} needs {{text}} once, or {{text_a}} and {{text_b}}"
        )
