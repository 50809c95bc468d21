from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation.answers import (
    Span,
    Unaligned,
    from_utf16,
    places_in,
    tagged,
    trimmed,
)
from smidgen.edge_client.formats.tags import OUTSIDE
from tests.edge_client.formats.annotation.annotated import Spanned, spanned

TEXT = "Ann Lee’s dog, in Rome"


def spans_of(places: Sequence[tuple[int, int]], tags: Sequence[str]) -> list[Span]:
    """The spans that BIO tags of words express, in order.

    Args:
        places: Of each word, where it begins and ends in the text.
        tags: One of each; an I- that follows none of its type begins a span.
    """
    found: list[Span] = []
    before = OUTSIDE
    for (start, end), tag in zip(places, tags, strict=True):
        if tag != OUTSIDE and tag[:2] == "I-" and before[2:] == tag[2:]:
            found[-1] = (found[-1][0], end, tag[2:])
        elif tag != OUTSIDE:
            found.append((start, end, tag[2:]))
        before = tag
    return found


@given(spanned())
def test_spans_give_the_words_and_tags_that_they_were_made_of(one: Spanned) -> None:
    assert tagged(one.text, one.spans) == (one.words, one.tags)


@given(spanned())
def test_tags_give_the_spans_again(one: Spanned) -> None:
    assert spans_of(places_in(one.text), one.tags) == list(one.spans)


@given(spanned())
def test_white_space_at_the_ends_of_a_span_does_not_matter(one: Spanned) -> None:
    def wider(start: int, end: int) -> tuple[int, int]:
        before = one.text[:start]
        return len(before.rstrip()), end + (one.text[end : end + 1].isspace())

    spans = [(*wider(start, end), label) for start, end, label in one.spans]
    assert tagged(one.text, spans) == (one.words, one.tags)


@given(st.text(), st.lists(st.tuples(st.integers(-3, 20), st.integers(-3, 20), st.just("X"))))
def test_any_spans_give_tags_that_say_the_same_spans_or_are_refused(
    text: str, spans: list[tuple[int, int, str]]
) -> None:
    with suppress(Unaligned):
        words, tags = tagged(text, spans)
        expected = sorted({trimmed(text, span) for span in spans})
        assert len(words) == len(tags) and spans_of(places_in(text), tags) == expected


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([(0, 2, "PER")], "its span 0 to 2 cuts a word"),
        ([(0, 7, "PER"), (4, 7, "LAST")], "two of its spans overlap"),
        ([(0, 7, "PER"), (0, 7, "ORG")], "two of its spans overlap"),
        ([(18, 99, "LOC")], "its span 18 to 99 is not within its 22 characters"),
        ([(4, 4, "LOC")], "its span 4 to 4 is not within its 22 characters"),
        ([(3, 4, "LOC")], "its span 3 to 4 is white space alone"),
    ],
)
def test_what_tags_cannot_say_is_refused_and_never_moved(
    spans: list[tuple[int, int, str]], said: str
) -> None:
    with pytest.raises(Unaligned) as refused:
        tagged(TEXT, spans)
    assert said in str(refused.value) and "Ann" not in str(refused.value)


def test_the_same_span_twice_is_one() -> None:
    assert tagged(TEXT, [(18, 22, "LOC")] * 2)[1][-2:] == ("O", "B-LOC")


@given(st.text(st.sampled_from("aé東📉𐐷\n")))
def test_utf_16_units_lead_to_the_code_point_that_they_begin(text: str) -> None:
    units = 0
    for place, sign in enumerate(text):
        assert from_utf16(text, units) == place
        if ord(sign) > 0xFFFF:
            assert from_utf16(text, units + 1) is None
        units += len(sign.encode("utf-16-le")) // 2
    assert from_utf16(text, units) == len(text) and from_utf16(text, units + 1) is None
