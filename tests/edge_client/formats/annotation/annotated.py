"""Texts with labelled spans, for properties, and what is made of rows that annotators answered."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st

from smidgen.edge_client.formats.annotation.answers import AnnotatedRow, Span, answered_in
from smidgen.edge_client.formats.source import PLAIN, Dialect, LeftOut, Reason, Row, Wants

WORDS = ("Ann", "went", "to", "Köln", "2024", "(", ")", ".", "’", "📉", "𐐷𐐷", "東京")
GAPS = (" ", "  ", "\n", "\t", "\u00a0")
TYPES = ("PER", "LOC", "PLACE OF BIRTH")
Reading: TypeAlias = Callable[[Sequence[Row], Dialect, Wants, list[str]], Iterator[AnnotatedRow]]


class Spanned(NamedTuple):
    """A text, its labelled spans, and its words with their tags."""

    text: str
    spans: tuple[Span, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...]


@st.composite
def spanned(draw: st.DrawFn) -> Spanned:
    """Texts of words with white space between, some in spans of one to three words."""
    text, spans = draw(st.sampled_from(("", *GAPS))), list[Span]()
    words, tags = list[str](), list[str]()
    for _ in range(draw(st.integers(0, 5))):
        label, start, end = draw(st.sampled_from((None, *TYPES))), len(text), len(text)
        for number in range(draw(st.integers(1, 3))):
            words.append(draw(st.sampled_from(WORDS)))
            tags.append("O" if label is None else f"{'I' if number else 'B'}-{label}")
            text += words[-1]
            end = len(text)
            text += draw(st.sampled_from(GAPS))
        if label is not None:
            spans.append((start, end, label))
    return Spanned(text, tuple(spans), tuple(words), tuple(tags))


class Read(NamedTuple):
    """What a file's rows come to.

    Attributes:
        labels: Label by text, of the rows that are read.
        spans: Spans by text, likewise.
        left_out: Reason of each row that is left out, in order.
        notes: What is said of the file.
        rows: All of it, in order.
    """

    labels: dict[Any, Any]
    spans: dict[Any, Any]
    left_out: list[Reason]
    notes: list[str]
    rows: list[Row | LeftOut]


def read(
    reading: Reading,
    rows: Sequence[Mapping[str, Any]],
    dialect: Dialect = PLAIN,
    labelled: bool = True,
) -> Read:
    """What a reader makes of rows: their labels, and their spans where they have such."""
    if not labelled:
        return _read(reading, rows, dialect, "text")
    labels = _read(reading, rows, dialect, "label")
    spans = _read(reading, rows, dialect, "tags")
    both = spans if spans.spans else labels
    return both._replace(labels=labels.labels, spans=spans.spans)


def _read(
    reading: Reading, rows: Sequence[Mapping[str, Any]], dialect: Dialect, wants: Wants
) -> Read:
    """Holds what is read to the law of accounting."""
    notes = list[str]()
    given = [Row(number, row) for number, row in enumerate(rows, start=1)]
    found = list(
        answered_in(given, lambda some: reading(some, dialect, wants, notes), wants, notes)
    )
    assert [one.line for one in found] == [one.line for one in given]
    kept = [one for one in found if isinstance(one, Row)]
    left_out = [one.reason for one in found if isinstance(one, LeftOut)]
    labels = {one.columns["text"]: one.columns.get("label") for one in kept}
    return Read(labels, {one.columns["text"]: one.spans for one in kept}, left_out, notes, found)
