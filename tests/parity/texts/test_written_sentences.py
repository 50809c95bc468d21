"""The ids of a filled pattern are those of the sentence a person would write, for every tokenizer.

The oracle is transformers' `PreTrainedTokenizerFast` over the same tokenizer. Of control words that
people type it is the same tokenizer with other names for its own.
"""

import json
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from smidgen.edge_client.tasks.task import Masking, Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.edge_client.texts.tokens import Prompt, Tokens
from tests.parity.texts.kinds import (
    MODELS,
    NORMALIZERS,
    OWN_POST,
    POST,
    SPECIALS,
    Kind,
    theirs,
    tokenizer_of,
    write_tokenizer,
)

pytest.importorskip("transformers")

KINDS = st.builds(
    Kind,
    st.sampled_from(sorted(MODELS)),
    st.sampled_from([*POST, *OWN_POST]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(sorted(NORMALIZERS)),
)
PATTERNS = st.sampled_from(
    [
        "{text}. It was [MASK].",
        "({text}) [MASK]",
        "[MASK]: {text}",
        '"{text_a}" {text_b}[MASK]',
        "{text_a} ? [MASK] , {text_b}",
        "{text}[MASK]",
        "[MASK]{text}",
        "  It  was [MASK]  {text} ",
        "日本は[MASK]。{text}",
        "x[MASK]y {text}",
        "[MASK] {text}",
        "{text}\n[MASK]",
    ]
)
SOME = ["The match", " great", "news", "日本", "  ", "!", "(a)", "don't", "ﬁne É", "\t", "\u200b"]
SOME += ["STRASSE", "€5", "12", ".", "e\u0301", "very good " * 9]
TEXTS = st.lists(st.sampled_from(SOME), max_size=8).map("".join)
TYPED = [*SPECIALS.values(), "[MASK]", "[SEP]", "[PAD]", "</s>", "<mask", "mask>"]
CONTROL = st.lists(st.sampled_from([*TYPED, *SOME]), min_size=1, max_size=8).map("".join)


@lru_cache(64)
def read_by(kind: Kind) -> tuple[Tokens, Any]:
    """Ours and theirs."""
    return Tokens(write_tokenizer(kind, Path(mkdtemp()))), theirs(kind)


def sentence(pattern: str, first: str, second: str = "", mask: str = SPECIALS["mask"]) -> str:
    """What a person would write, with a mask or a word in its place."""
    written = pattern.replace("[MASK]", "\0").replace("{text_b}", "\1")
    for slot in ("{text}", "{text_a}"):
        written = written.replace(slot, "\2")
    return written.replace("\0", mask).replace("\1", second).replace("\2", first)


@given(KINDS, PATTERNS, TEXTS, TEXTS)
def test_a_filled_pattern_has_the_ids_of_the_written_sentence(
    kind: Kind, pattern: str, first: str, second: str
) -> None:
    ours, reads = read_by(kind)
    prompt = ours.cloze(pattern, Example(first, second), 500)
    assert prompt.ids == reads(sentence(pattern, first, second))["input_ids"]
    assert prompt.places == [prompt.ids.index(ours.mask_id)] and prompt.segments is None


@given(KINDS, PATTERNS, TEXTS, TEXTS, st.integers(14, 60))
def test_a_cut_prompt_is_the_sentence_with_the_beginning_of_its_text(
    kind: Kind, pattern: str, first: str, second: str, limit: int
) -> None:
    ours, reads = read_by(kind)
    try:
        prompt = ours.cloze(pattern, Example(first, second), limit)
    except TaskError:
        assert len(reads(sentence(pattern, "a", "a"))["input_ids"]) >= limit - 2
        return
    assert len(prompt.ids) <= limit and prompt.ids.count(ours.mask_id) == 1
    pairs = [(first, second)]
    if len(reads(sentence(pattern, first, second))["input_ids"]) > limit:
        pairs = [
            (first[:end], second[:other])
            for end in range(len(first) + 1)
            for other in (range(len(second) + 1) if "text_b" in pattern else [0])
        ]
        if len(pairs) > 2000:  # a pair of long texts: only that it fits, and has its mask
            return
    found = reads([sentence(pattern, *pair) for pair in pairs])["input_ids"]
    assert prompt.ids in found


@given(KINDS, PATTERNS, st.sampled_from(["great", "bad", "world news", "日本", "sports"]), TEXTS)
def test_a_label_word_has_the_ids_that_it_has_in_the_sentence_or_is_refused(
    kind: Kind, pattern: str, word: str, text: str
) -> None:
    ours, reads = read_by(kind)
    task = Task("t", ("a", "b"), (pattern,), {"a": word, "b": "business"})
    try:
        ids = ours.label_word_ids(task)[0]
    except TaskError as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert any(reason in said for reason in ("runs into", "unknown", "same as")), said
        return
    text = text.strip() or "a"
    found = reads(sentence(pattern, text, text, word))["input_ids"]
    starts = [at for at in range(len(found)) if found[at : at + len(ids)] == ids]
    assert starts
    is_split = kind.model != "bpe prepended"  # its pieces go on beyond a word
    if is_split and kind.lstrip and "[MASK] " in pattern and " [MASK]" in f" {pattern}":
        whole = reads(sentence(pattern, text, text))["input_ids"]
        place = whole.index(ours.mask_id)
        assert found[: place + len(ids)] == [*whole[:place], *ids]


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        (Kind("bpe never", lstrip=False, normalizer="NFKC"), "{text}\n[MASK]"),
        (Kind("bpe never", lstrip=False), "{text}\n[MASK]. x"),
        (Kind("bytes"), "{text}[MASK]"),
        (Kind("wordpiece"), "[MASK]{text} ."),
    ],
    ids=["offsets shifted", "offsets shifted behind", "a text before", "a text behind"],
)
def test_a_label_word_whose_tokens_are_not_sure_is_refused(kind: Kind, pattern: str) -> None:
    ours, _ = read_by(kind)
    task = Task("t", ("a", "b"), (pattern,), {"a": "bad", "b": "good"})
    with pytest.raises(TaskError, match="label word 'bad' of 'a' runs into"):
        ours.label_word_ids(task)


@given(KINDS, TEXTS, TEXTS, st.integers(8, 60))
def test_a_classifier_reads_texts_and_pairs_as_transformers_truncates_them(
    kind: Kind, first: str, second: str, limit: int
) -> None:
    ours, reads = read_by(kind)
    prompt = ours.plain(Example(first, second), limit)
    asked = {"truncation": "longest_first", "max_length": limit, "return_token_type_ids": True}
    wanted = reads(first, second or None, **asked)
    assert prompt.ids == wanted["input_ids"]
    assert (prompt.segments or [0] * len(prompt.ids)) == wanted["token_type_ids"]


@given(KINDS, st.lists(st.sampled_from(["The", "(really)", "don't", "日本", "é"]), min_size=1))
def test_words_one_by_one_have_the_ids_that_transformers_gives_them(
    kind: Kind, words: list[str]
) -> None:
    ours, reads = read_by(kind)
    if kind.model == "bytes":  # what transformers asks for where words are given one by one
        reads = theirs(kind)
        spaced = pre_tokenizers.ByteLevel(add_prefix_space=True)
        reads.backend_tokenizer.pre_tokenizer = spaced
    found = reads(words, is_split_into_words=True, add_special_tokens=False)
    known = [ids for ids in ours.words(words, 500) if ids != [ours.unknown_id]]
    assert [id_ for ids in known for id_ in ids] == [
        id_ for id_ in found["input_ids"] if id_ != ours.unknown_id
    ]


@given(KINDS, TEXTS, TEXTS)
def test_gaps_are_the_bases_masks_in_the_written_text(kind: Kind, first: str, second: str) -> None:
    ours, reads = read_by(kind)
    prompt = ours.gaps(f"{first}[MASK]{second} [MASK]", 500)
    wanted = reads(f"{first}<mask>{second} <mask>")["input_ids"]
    assert prompt.ids == wanted and len(prompt.places) == 2
    assert all(prompt.ids[place] == ours.mask_id for place in prompt.places)


# What people type is text


@lru_cache(64)
def renamed(kind: Kind) -> Tokenizer:
    """The same tokenizer, whose control words have names that nobody types."""
    document = json.loads(tokenizer_of(kind).to_str())
    document |= {"added_tokens": [], "post_processor": None}
    model, names = document["model"], {word: f"\0{word}\0" for word in SPECIALS.values()}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(word, word): id_ for word, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(word, word), score] for word, score in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = names[model["unk_token"]]
    return Tokenizer.from_str(json.dumps(document))


def own_of(prompt: Prompt, ours: Tokens) -> list[int]:
    before, after = ours.frame
    return prompt.ids[len(before) : len(prompt.ids) - len(after)]


@given(KINDS, CONTROL)
def test_typed_control_words_have_the_ids_of_plain_text(kind: Kind, text: str) -> None:
    ours, _ = read_by(kind)
    wanted = renamed(kind).encode(text).ids
    assert ours.encode(text) == ours.pieces(text, 500)[0][: len(wanted)] or not wanted
    assert ours.encode(text) == wanted == own_of(ours.plain(Example(text), 500), ours)
    prompt = ours.cloze("[MASK] {text}", Example(text), 500)
    assert prompt.ids.count(ours.mask_id) == 1
    control = {ours._tokenizer.token_to_id(word) for word in SPECIALS.values()} - {ours.unknown_id}
    assert control.isdisjoint(wanted)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_typed_control_words_are_no_targets_of_masking(model: str) -> None:
    from smidgen.edge_client.tasks.kinds.masked_words import masked

    ours, _ = read_by(Kind(model))
    text = Example("the <mask> [MASK] of </s> <pad> <s> news " * 9)
    for draw in range(20):
        (prompt,) = masked(ours, Masking(0.4), [text], 200, draw)
        special = {0, 1, 2, ours.mask_id} - {ours.unknown_id}
        assert special.isdisjoint(prompt.answers)


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("word", ["<mask>", "[MASK]", " </s> ", "<unk>"])
def test_a_label_word_that_is_a_control_word_is_refused(model: str, word: str) -> None:
    ours, _ = read_by(Kind(model))
    task = Task("t", ("a", "b"), ("{text} [MASK]",), {"a": "good", "b": word})
    with pytest.raises(TaskError, match="of 'b' is a control word of this base's tokenizer"):
        ours.label_word_ids(task)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_pattern_that_spells_a_control_word_is_refused(model: str) -> None:
    ours, _ = read_by(Kind(model))
    with pytest.raises(TaskError, match="holds </s>, a control word of this base's tokenizer"):
        ours.cloze("{text} </s> [MASK]", Example("x"), 90)


def test_an_ensemble_whose_patterns_give_a_word_other_tokens_is_refused() -> None:
    ours, _ = read_by(Kind("bytes"))
    patterns = ("[MASK]: {text}", "{text} It was [MASK].")
    task = Task("t", ("a", "b"), patterns, {"a": "good", "b": "bad"})
    assert len(ours.label_word_ids(task)) == 2
    ensemble = Task("t", ("a", "b"), patterns, {"a": "good", "b": "bad"}, ensemble=True)
    with pytest.raises(TaskError, match="'good' of 'a' has other tokens in pattern"):
        ours.label_word_ids(ensemble)


@settings(max_examples=20)
@given(KINDS, TEXTS, TEXTS)
def test_remembered_prompts_are_the_same(kind: Kind, first: str, second: str) -> None:
    ours, _ = read_by(kind)
    known = Tokens(write_tokenizer(kind, Path(mkdtemp())))
    known.remember()
    example = Example(first, second)
    for _ in range(2):
        prompt = known.cloze("{text_a} [MASK] {text_b}", example, 40)
        assert prompt == ours.cloze("{text_a} [MASK] {text_b}", example, 40)
        prompt.ids.clear()  # whoever was answered may change it
        assert known.plain(example, 30) == ours.plain(example, 30)
