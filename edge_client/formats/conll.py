"""CoNLL: one word per line, columns separated by tabs or spaces, a blank line between texts.

    Aspirin  NN  O  B-Drug
    helped   VBD O  O

The first column is the word and the last its tag, unless the file or the user says otherwise; see
`conll_columns`. In `.tsv` a word may have its language and a colon in front, as in PAN-X, which are
removed. Lines that begin with -DOCSTART- and comments (`# ...`) are skipped.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.formats.blocks import Block, blocks
from edge_client.formats.conll_columns import (
    IN_MISC,
    MISC,
    RANGE,
    Layout,
    columns_of,
    has_names,
    is_between,
    is_marked,
    layout_of,
    rows_in,
)
from edge_client.formats.dialect import PLAIN, Wants
from edge_client.formats.opened import Source, head_of
from edge_client.formats.reader import Head, LeftOut, Row, Rows
from edge_client.formats.tags import OUTSIDE, parted

LANGUAGE = re.compile(r"(simple|[a-z]{2,3}(?:-[a-z]+)*):")


@dataclass(frozen=True)
class Conll:
    """Words in columns."""

    name: str = "words in columns"
    endings: tuple[str, ...] = (".conll", ".conllu", ".iob", ".bio", ".tsv")

    def sniff(self, head: Head) -> float:
        """See `Reader`; a `.tsv` may as well be a table, which its first row tells."""
        if head.ending != ".tsv":
            return 0.5
        row = next(rows_in(head.text), [""])
        is_named = has_names(row) and "LABEL" not in map(str.upper, row)  # which tables have, too
        has_tags = is_named or (len(row) > 1 and bool(parted(row[-1])[0]))
        has_text = PLAIN.columns(row).text is not None
        has_text |= bool(head.dialect.text_column) and head.dialect.columns(row).text is not None
        if has_tags == has_text:
            return 0.5  # whatever is asked for
        return 0.6 if has_tags else 0.0

    def gives(self, head: Head) -> frozenset[Wants]:
        return frozenset(("text", "tags"))

    def read(self, source: Source) -> Rows:
        texts = _Texts(layout_of(head_of(source.path, source.dialect), source))
        with source.lines() as lines:
            for block in blocks(lines, source, is_between):
                if block.fault:
                    yield block.fault
                elif rows := texts.rows_of(block):
                    yield texts.text_of(block.line, rows)


CONLL = Conll()


class _Texts:
    """Makes texts of the blocks of a file, whose columns are as a `Layout` says."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._width = 0  # columns of a row; 0: not known yet
        self._has_names = layout.has_names  # in the next row

    def rows_of(self, block: Block) -> list[tuple[int, list[str]]]:
        """The rows of a block that are words, with their lines."""
        start = block.line - len(block.lines) + 1
        rows = [(line, columns_of(text)) for line, text in enumerate(block.lines, start=start)]
        self._width = next((len(row) for _, row in rows if not is_marked(row)), self._width)
        found = [
            (line, row)
            for (line, row), text in zip(rows, block.lines, strict=True)
            if not self._is_aside(row, "\t" in text)
        ]
        if found and self._has_names:
            self._has_names = False
            return found[1:]
        return found

    def _is_aside(self, row: list[str], is_tabbed: bool) -> bool:
        """Whether a row is a comment, or none of a word."""
        layout = self._layout
        if layout.has_ranges and RANGE.fullmatch(row[0]):
            return True
        if not is_marked(row):
            return False
        if not layout.has_tags and len(row) == 1 and not layout.is_numbered:
            return False  # a word alone, where that is enough
        # `#` may be a word too, in a row like the others: between tabs, or with a tag.
        if layout.is_numbered or len(row) != (self._width or len(row)):
            return True
        tag = row[-1] if layout.tag is None or layout.tag >= len(row) else row[layout.tag]
        return not (is_tabbed and row[0] == "#") and not parted(tag)[0]

    def text_of(self, last: int, rows: Sequence[tuple[int, list[str]]]) -> Row | LeftOut:
        """A block's words and tags."""
        layout = self._layout
        least = layout.word + (2 if layout.has_tags and layout.tag == -1 else 1)
        for line, row in rows:
            if len(row) < max(least, (layout.tag or 0) + 1 if layout.has_tags else 0):
                said = "a word without a tag; both are expected, a tab between"
                return LeftOut(line, "tags" if layout.has_tags else "columns", said)
            if not row[layout.word].strip():
                said = "a tag without a word; both are expected, a tab between"
                return LeftOut(line, "tags", said)
        words = [row[layout.word] for _, row in rows]
        if layout.prefix is None:
            layout.prefix = _prefix_of(words)
        words = [sys.intern(word.removeprefix(layout.prefix)) for word in words]
        if any(not word.strip() for word in words):
            return LeftOut(last, "tags", "a tag without a word; both are expected, a tab between")
        columns = {"language": layout.prefix[:-1]} if layout.prefix else {}
        tags = [sys.intern(self._tag(row)) for _, row in rows] if layout.has_tags else []
        return Row(last, columns, tuple(words), tuple(tags), tuple(line for line, _ in rows))

    def _tag(self, row: list[str]) -> str:
        if self._layout.tag is not None:
            return row[self._layout.tag]
        match = IN_MISC.search(row[MISC]) if len(row) > MISC else None
        return match[1] if match else OUTSIDE


def _prefix_of(words: Sequence[str]) -> str:
    """The language that each word of a file stands behind, by its first text; or nothing."""
    found = {match[0] if (match := LANGUAGE.match(word)) else "" for word in words}
    return found.pop() if len(found) == 1 else ""
