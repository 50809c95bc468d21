"""Labelled spans of a text, and BIO tags of its words: either made from the other.

    tagged("Ann Lee left.", [(0, 7, "PER")])  # (("Ann", "Lee", "left", "."), ("B-PER", "I-PER", ...

A span counts code points from the text's first, as Python does: its first, the one behind its last,
and its type. Where a span's ends are not those of words, nothing is moved: such a text is refused.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

from edge_client.formats.tags import OUTSIDE

WORD = re.compile(r"\w+|[^\w\s]")

Span: TypeAlias = tuple[int, int, str]


class Unaligned(ValueError):
    """Spans that tags of words cannot express; says why, and quotes no text."""


def places_in(text: str) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends: letters and digits in a row, or another sign."""
    return [match.span() for match in WORD.finditer(text)]


def tagged(text: str, spans: Iterable[Span]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A text's words and their BIO tags.

    Laws: as many tags as words; the words' places and the tags give the spans again,
    without white space at their ends and each once, in the text's order.

    Raises:
        Unaligned: A span is empty or leaves the text, cuts a word, or overlaps another.
    """
    places, wanted = places_in(text), sorted({trimmed(text, span) for span in spans})
    for one, other in pairwise(wanted):
        if other[0] < one[1]:
            raise Unaligned("two of its spans overlap; a word has one tag")
    starts = {start: number for number, (start, _) in enumerate(places)}
    ends = {end: number for number, (_, end) in enumerate(places)}
    tags = [OUTSIDE] * len(places)
    for start, end, label in wanted:
        if start not in starts or end not in ends:
            raise Unaligned(f"its span {start} to {end} cuts a word")
        first, last = starts[start], ends[end]
        tags[first : last + 1] = [f"B-{label}", *[f"I-{label}"] * (last - first)]
    return tuple(text[start:end] for start, end in places), tuple(tags)


def trimmed(text: str, span: Span) -> Span:
    """A span without white space at its ends.

    Raises:
        Unaligned: It is empty, or leaves the text.
    """
    start, end, label = span
    if not 0 <= start < end <= len(text):
        raise Unaligned(f"its span {start} to {end} is not within its {len(text)} characters")
    inner = text[start:end].strip()
    if not inner:
        raise Unaligned(f"its span {start} to {end} is white space alone")
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return start, start + len(inner), label


def from_utf16(text: str, offset: int) -> int | None:
    """The code point that lies so many UTF-16 units (as JavaScript counts) into a text.

    None: the offset is behind the text, or within a pair of surrogates.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    if not 0 <= offset <= len(units) // 2:
        return None
    try:
        return len(units[: 2 * offset].decode("utf-16-le"))
    except UnicodeDecodeError:
        return None
