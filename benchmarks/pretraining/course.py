"""Pretraining samples of the embedded base: passages, masked and batched once and for all.

A course is a list of batches, the same for the same seed. Because it is fixed, a teacher's answers
to it can be stored and reused. There are three kinds of sample: plain text with masked words
(Devlin et al. 2019, but whole words, and always the mask token); a text beside its translation
(TLM, Conneau and Lample 2019, arXiv:1901.07291); and a cloze prompt around a text, whose answer
only a teacher knows. The teacher reads English: for a translated text's prompt it gets the English
original.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from benchmarks.pretraining.corpus import Passage
from benchmarks.pretraining.vocabulary import words_of

MASK, SEP = "[MASK]", "[SEP]"
NOT_SCORED = -100  # gold of a mask whose answer is not in the text
MASKED_SHARE = 0.2
LONGEST = 96
CLOZE_TEXT_WORDS = 56
PATTERNS = tuple(
    tuple(pattern.split())
    for pattern in (
        "[MASK] : *",
        "a [MASK] news : *",
        "topic : [MASK] . *",
        "* . it is about [MASK] .",
        "[MASK] news : *",
        "category : [MASK] . *",
        "this is about [MASK] : *",
        "* . this is a story about [MASK] .",
        "* . it was [MASK] .",
        "a [MASK] text : *",
    )
)


@dataclass(frozen=True)
class Sample:
    """One text with words masked.

    Attributes:
        words: What the student reads; specials stand for themselves.
        taught: What the teacher reads; empty where there is no teacher.
        masks: Each mask's index in `words`, in `taught` (-1: not there) and the masked word
            (empty: nobody knows).
    """

    words: tuple[str, ...]
    taught: tuple[str, ...]
    masks: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True)
class Masked:
    """Padded inputs and where their masks are.

    Attributes:
        ids: int64, shape (batch, tokens).
        attention: 1 for real tokens, int64, shape (batch, tokens).
        rows: Row of each mask, int64, shape (masks,).
        columns: Column of each mask, int64, shape (masks,).
        common: Where both read the same one-token word, in the same order for both; row x tokens +
            column, int64, shape (common,).
    """

    ids: torch.Tensor
    attention: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    common: torch.Tensor

    def to(self, device: torch.device) -> "Masked":
        """These tensors, on a device."""
        return Masked(
            self.ids.to(device),
            self.attention.to(device),
            self.rows.to(device),
            self.columns.to(device),
            self.common.to(device),
        )


@dataclass(frozen=True)
class CourseBatch:
    """Samples as student and teacher read them.

    Attributes:
        student: Every mask's every token.
        gold: Token behind each of the student's masks, or `NOT_SCORED`; int64, shape (masks,).
        is_taught: Which of them the teacher answers; bool, shape (masks,).
        teacher: The same masks as the teacher reads them, in the same order; None if it
            answers none.
    """

    student: Masked
    gold: torch.Tensor
    is_taught: torch.Tensor
    teacher: Masked | None

    def to(self, device: torch.device) -> "CourseBatch":
        """The student's part on a device; the teacher fetches its own."""
        return CourseBatch(
            self.student.to(device), self.gold.to(device), self.is_taught.to(device), self.teacher
        )


class Pieces:
    """Token ids of words, each word split once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        ids = tokenizer.get_vocab()
        self.mask_id, self.pad_id = ids[MASK], ids["[PAD]"]
        self.frame = ids["[CLS]"], ids[SEP]

    def of(self, word: str) -> list[int]:
        """Ids of a normalised word."""
        if word not in self._known:
            self._known[word] = self._tokenizer.encode(word, add_special_tokens=False).ids
        return self._known[word]


def build_course(
    passages: Sequence[Passage],
    student: Tokenizer,
    teacher: Tokenizer | None,
    batch_tokens: int,
    maskings: int,
    seed: int,
) -> list[CourseBatch]:
    """Mask every passage several times and group the samples by length.

    Args:
        passages: What to learn from.
        student: The student's tokenizer.
        teacher: The teacher's; splits text into the same words.
        batch_tokens: Tokens in a batch, padding included, about.
        maskings: How often each passage is masked anew.
        seed: Equal seeds give equal courses.
    """
    rng = random.Random(seed)
    pieces = Pieces(student), Pieces(teacher) if teacher else None
    split = {text: tuple(words_of(student, text)) for p in passages for text in (p.text, p.english)}
    batches = []
    for _ in range(maskings):
        samples = [
            sample
            for passage in passages
            for sample in _samples(split[passage.text], split[passage.english], passage, rng)
            if teacher or any(word for _, _, word in sample.masks)
        ]
        widths = [_width(sample, pieces[0]) + rng.random() for sample in samples]
        order = sorted(range(len(samples)), key=widths.__getitem__)
        groups = groups_of([int(widths[index]) for index in order], batch_tokens)
        batches += [encode([samples[order[i]] for i in group], *pieces) for group in groups]
    return [batch for batch in batches if len(batch.gold)]


def mask_words(
    words: tuple[str, ...], share: float, rng: random.Random
) -> tuple[tuple[str, ...], list[tuple[int, str]]]:
    """Put a mask on a share of the words, and on one at least.

    Returns:
        The words with masks, and each masked word with its index.
    """
    free = [index for index, word in enumerate(words) if word != SEP]
    hidden = {index for index in free if rng.random() < share} or {rng.choice(free)}
    masked = tuple(MASK if index in hidden else word for index, word in enumerate(words))
    return masked, [(index, words[index]) for index in sorted(hidden)]


def encode(samples: Sequence[Sample], student: Pieces, teacher: Pieces | None) -> CourseBatch:
    """Turn samples into tensors; a masked word of several tokens gets as many masks."""
    ours, theirs = _Rows(student), _Rows(teacher or student)
    gold: list[int] = []
    is_taught: list[bool] = []
    for sample in samples:
        starts = ours.add(sample.words, {i: word for i, _, word in sample.masks})
        taught_starts: list[int] = []
        if teacher and sample.taught:
            taught_starts = theirs.add(sample.taught, {j: word for _, j, word in sample.masks})
            if sample.taught == sample.words:
                both = [pair for pair in zip(starts, taught_starts, strict=True) if min(pair) > 0]
                ours.common += [(len(ours.ids) - 1, start) for start, _ in both]
                theirs.common += [(len(theirs.ids) - 1, start) for _, start in both]
        for index, taught_index, word in sample.masks:
            answers = student.of(word) if word else [NOT_SCORED]
            first = abs(starts[index])
            if first + len(answers) >= len(ours.ids[-1]):
                continue  # cut away
            one_token = (
                bool(taught_starts) and starts[index] > 0 and taught_starts[taught_index] > 0
            )
            ours.masks += [(len(ours.ids) - 1, first + offset) for offset in range(len(answers))]
            gold += answers
            is_taught += [one_token] * len(answers)
            if one_token:
                theirs.masks.append((len(theirs.ids) - 1, taught_starts[taught_index]))
    return CourseBatch(
        student=ours.padded(),
        gold=torch.tensor(gold, dtype=torch.int64),
        is_taught=torch.tensor(is_taught, dtype=torch.bool),
        teacher=theirs.padded() if theirs.masks else None,
    )


def _samples(
    words: tuple[str, ...], english: tuple[str, ...], passage: Passage, rng: random.Random
) -> list[Sample]:
    if not words:
        return []
    masked, hidden = mask_words(words, MASKED_SHARE, rng)
    is_english = passage.language == "en"
    plain = Sample(masked, masked if is_english else (), tuple((i, i, w) for i, w in hidden))
    samples = [plain]
    if english:
        both, hidden = mask_words((*english, SEP, *words)[:LONGEST], MASKED_SHARE, rng)
        samples.append(Sample(both, (), tuple((i, -1, w) for i, w in hidden)))
    if english or (is_english and len(words) > 5):
        samples.append(_cloze(words, english or words, rng.choice(PATTERNS)))
    return samples


def _cloze(words: tuple[str, ...], english: tuple[str, ...], pattern: tuple[str, ...]) -> Sample:
    filled, taught = _fill(pattern, words), _fill(pattern, english)
    return Sample(filled, taught, ((filled.index(MASK), taught.index(MASK), ""),))


def _fill(pattern: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    slot = pattern.index("*")
    return (*pattern[:slot], *words[:CLOZE_TEXT_WORDS], *pattern[slot + 1 :])


def _width(sample: Sample, pieces: Pieces) -> int:
    behind = {index: word for index, _, word in sample.masks}
    parts = (behind.get(index) or word for index, word in enumerate(sample.words))
    return min(2 + sum(len(pieces.of(part)) for part in parts), LONGEST)


def groups_of(widths: Sequence[int], batch_tokens: int) -> list[range]:
    """Neighbours whose padded tokens fit a batch; one that alone does not has its own.

    Args:
        widths: Tokens of each sample, ascending.
        batch_tokens: Tokens in a batch, padding included, at most.
    """
    groups: list[range] = []
    for index, width in enumerate(widths):  # shortest first: the last one is the widest
        if groups and (index + 1 - groups[-1].start) * width <= batch_tokens:
            groups[-1] = range(groups[-1].start, index + 1)
        else:
            groups.append(range(index, index + 1))
    return groups


class _Rows:
    """Inputs of one reader, as they are put together."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.ids: list[list[int]] = []
        self.masks: list[tuple[int, int]] = []
        self.common: list[tuple[int, int]] = []

    def add(self, words: Sequence[str], behind: dict[int, str]) -> list[int]:
        """Encode one row; where each word starts, minus that if it is not one token in it."""
        ids, starts = [self.pieces.frame[0]], []
        for index, word in enumerate(words):
            hidden = behind.get(index)
            part = self.pieces.of(hidden or word)
            inside = len(part) == 1 and len(ids) < LONGEST - 1
            starts.append(len(ids) if inside else -len(ids))
            ids += [self.pieces.mask_id] * len(part) if hidden else part
        self.ids.append([*ids[: LONGEST - 1], self.pieces.frame[1]])
        return starts

    def padded(self) -> Masked:
        width = max(len(row) for row in self.ids)
        ids = torch.full((len(self.ids), width), self.pieces.pad_id, dtype=torch.int64)
        attention = torch.zeros_like(ids)
        for index, row in enumerate(self.ids):
            ids[index, : len(row)] = torch.tensor(row)
            attention[index, : len(row)] = 1
        return Masked(
            ids=ids,
            attention=attention,
            rows=torch.tensor([row for row, _ in self.masks], dtype=torch.int64),
            columns=torch.tensor([column for _, column in self.masks], dtype=torch.int64),
            common=torch.tensor([row * width + c for row, c in self.common], dtype=torch.int64),
        )
