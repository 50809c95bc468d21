"""Long texts in windows, where words stand in a text, and texts with masks of their own."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.tasks.kinds.tag_answers import parts_read, places_of, windows, words_of
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Tokens

WORDS = st.lists(st.sampled_from(["rain", "a", "hypotensioninduced", "x" * 90, "é"]), min_size=1)
LIMITS = st.integers(3, 40)


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens(open_base("embedded").folder)


@given(WORDS, LIMITS)
def test_every_word_is_told_by_one_window_that_reads_it(
    tokens: Tokens, words: list[str], limit: int
) -> None:
    found = windows(tokens, words, limit)
    told = parts_read(found)
    assert [place for part in told for place in part] == list(range(len(words)))
    for one, part in zip(found, told, strict=True):
        assert one.start <= part.start <= part.stop <= one.stop


@given(WORDS, LIMITS)
def test_each_window_fits_and_none_lies_within_another(
    tokens: Tokens, words: list[str], limit: int
) -> None:
    found = windows(tokens, words, limit)
    room = limit - sum(map(len, tokens.frame))
    assert all(len(tokens.words(words[one.start : one.stop], room)) == len(one) for one in found)
    assert all(a.start < b.start and a.stop < b.stop for a, b in pairwise(found))


def test_a_text_that_fits_is_one_window(tokens: Tokens) -> None:
    assert windows(tokens, ["rain", "at", "nine"], 20) == [range(3)]


def test_windows_overlap_by_a_quarter_and_each_tells_half_of_that(tokens: Tokens) -> None:
    first, second, *_ = windows(tokens, ["rain"] * 100, 22)
    assert (first, second.start) == (range(20), 15)
    assert parts_read([first, second])[0] == range(17)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])).filter(str.strip))
def test_words_of_a_text_are_where_it_has_them(text: str) -> None:
    example = Example(text)
    found = [text[start:end] for start, end in places_of(example)]
    assert found == list(words_of(example))


def test_words_of_a_file_that_are_not_in_its_text_have_their_place_in_the_words() -> None:
    example = Example("otherwise", words=("heart", "failure"))
    assert places_of(example) == [(0, 5), (6, 13)]


def test_each_mask_is_one_token_at_its_place(tokens: Tokens) -> None:
    prompt = tokens.gaps("rain at [MASK] and[MASK]", 30)
    assert [prompt.ids[place] for place in prompt.places] == [tokens.mask_id] * 2
    assert tokens.gaps("rain", 30).places == []
    assert len(tokens.gaps(f"{'rain ' * 99}[MASK]", 30).places) == 0


@given(st.text("ab [MASK]", max_size=60), LIMITS)
def test_a_text_with_masks_fits_and_is_asked_at_masks_alone(
    tokens: Tokens, text: str, limit: int
) -> None:
    prompt = tokens.gaps(text, limit)
    assert len(prompt.ids) <= limit and len(prompt.places) <= text.count("[MASK]")
    assert all(prompt.ids[place] == tokens.mask_id for place in prompt.places)
