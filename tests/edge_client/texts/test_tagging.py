"""Words and their tokens: the laws of the encoder of kind `tagging`, and transformers' own."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kinds.tag_answers import tagged, words_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import LONGEST_PIECED, Tokens
from tests.conftest import shared
from tests.tiny import WORDS

TASK = Task("drugs", ("Drug", "Disease"), kind="tagging")
WORD = st.one_of(
    st.sampled_from([*WORDS.split(), "microwave", "co-trimoxazole", "\u200b", "\x00", "東京"]),
    st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=9),
)
TAG = st.sampled_from(TASK.tags)
TEXTS = st.lists(
    st.lists(st.tuples(WORD, TAG), min_size=1, max_size=20).map(
        lambda pairs: example_of([word for word, _ in pairs], [tag for _, tag in pairs])
    ),
    min_size=1,
    max_size=4,
)
LIMITS = st.integers(3, 40)
NOTES = [
    "Naloxone reverses the antihypertensive effect of clonidine .",
    "In unanesthetized , spontaneously hypertensive rats the decrease in blood pressure",
    "Co-trimoxazole ( 2 x 960 mg/d ) : fièvre , œdème & l'hypotension",
    "x",
    "β-blockers don't 100% U.S.A.",
]


def example_of(words: Sequence[str], tags: Sequence[str] = ()) -> Example:
    return Example(" ".join(words), words=tuple(words), tags=tuple(tags))


@given(TEXTS, LIMITS)
def test_each_word_is_asked_at_its_first_token_for_its_own_tag(
    tiny_base: Base, examples: list[Example], limit: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    for example, prompt in zip(examples, tagged(tokens, TASK, examples, limit), strict=True):
        assert 1 <= len(prompt.places) <= len(example.words) and len(prompt.ids) <= limit
        ends = [*prompt.places[1:], len(prompt.ids) - 1]
        for word, start, end in zip(example.words, prompt.places, ends, strict=False):
            own = tokens.encode(f" {word}") or [tokens.unknown_id or 0]
            assert prompt.ids[start:end] == own[: end - start]
            assert end - start == len(own) or len(prompt.places) == 1
        told = [TASK.tags[answer] for answer in prompt.answers]
        assert told == list(example.tags[: len(told)])


@given(TEXTS, LIMITS)
def test_a_text_is_cut_only_where_its_next_word_does_not_fit(
    tiny_base: Base, examples: list[Example], limit: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    for example, prompt in zip(examples, tagged(tokens, TASK, examples, limit), strict=True):
        if len(prompt.places) < len(example.words):
            following = tokens.encode(f" {example.words[len(prompt.places)]}") or [0]
            assert len(prompt.ids) + len(following) > limit


@given(TEXTS, LIMITS)
def test_texts_have_no_part_in_each_other(
    tiny_base: Base, examples: list[Example], limit: int
) -> None:
    tokens = Tokens(tiny_base.folder)
    alone = [tagged(tokens, TASK, [example], limit)[0] for example in examples]
    assert tagged(tokens, TASK, examples, limit) == alone
    encoder = Encoder(tokens, TASK, False, limit)
    assert encoder.prompts(examples, draw=1) == encoder.prompts(examples, draw=2) == alone


def test_a_word_that_the_tokenizer_drops_is_kept_as_unknown(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    example = example_of(["rain", "\u200b", "today"], ["O", "B-Drug", "O"])
    (prompt,) = tagged(tokens, TASK, [example], 24)
    assert prompt.places == [1, 2, 3] and prompt.ids[2] == tokens.unknown_id
    assert [TASK.tags[answer] for answer in prompt.answers] == ["O", "B-Drug", "O"]


def test_a_first_word_that_is_too_long_keeps_its_start(tiny_base: Base) -> None:
    tokens = Tokens(tiny_base.folder)
    (prompt,) = tagged(tokens, TASK, [example_of(["qwertzuiop", "rain"])], 8)
    assert prompt.places == [1] and prompt.answers == [-1]
    assert prompt.ids[1:-1] == tokens.encode("qwertzuiop")[:6]
    endless = example_of(["z" * 100_000, "rain"])
    (prompt,) = tagged(tokens, TASK, [endless], 2 * LONGEST_PIECED)
    assert len(prompt.places) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("take 2 pills.", ("take", "2", "pills", ".")),
        ("l'été (co-op)", ("l", "'", "été", "(", "co", "-", "op", ")")),
        (" ", (" ",)),
    ],
)
def test_words_that_no_file_tells_apart_are_found(text: str, words: tuple[str, ...]) -> None:
    assert words_of(Example(text)) == words
    assert words_of(Example(text, words=("as", "told"))) == ("as", "told")


# Beside transformers


def byte_level(corpus: Iterable[str]) -> Tokenizer:
    """As RoBERTa's: no space is put before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def sentence_pieces(corpus: Iterable[str]) -> Tokenizer:
    """As XLM-RoBERTa's: words carry a mark in place of the space before them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def same_alignment(folder: Path, theirs: Any) -> None:
    """Their `word_ids` begin a word where ours does, on the same ids."""
    tokens = Tokens(folder)
    for note in NOTES:
        words = note.split()
        (prompt,) = tagged(tokens, TASK, [example_of(words)], 128)
        found = theirs(words, is_split_into_words=True)
        assert prompt.ids == found["input_ids"]
        of = found.word_ids()
        assert prompt.places == [of.index(number) for number in range(len(words))]


@pytest.mark.parametrize("name", ["bert-tiny-mlm", "minilm-l6-mlm"])
def test_words_lie_as_transformers_lays_them_in_real_bases(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared("models", name)
    same_alignment(folder, transformers.AutoTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_words_lie_as_transformers_lays_them_by_other_kinds_of_tokenizer(
    tmp_path: Path, make: Callable[[Iterable[str]], Tokenizer]
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = make([*NOTES, WORDS] * 3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if make is byte_level:  # what is asked of RoBERTa's where words are given one by one
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    same_alignment(
        tmp_path, transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    )
