"""CoNLL: a word on each line, its columns between tabs or spaces, a blank line between texts.

    Aspirin  NN  O  B-Drug
    helped   VBD O  O

The first column is the word and the last its tag, unless the file says otherwise: it names its
columns (`# global.columns = ID FORM NER`), it is CoNLL-U, its first column counts the words, or
several columns hold tags. What was read then is said. `.tsv` may have each word behind its language
and a colon, as PAN-X has it, which are taken off. Lines that begin with -DOCSTART- and comments
(`# ...`) are passed over.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from edge_client.formats.blocks import Block, blocks
from edge_client.formats.dialect import PLAIN, Wants, named
from edge_client.formats.opened import Source, ending_of, head_of
from edge_client.formats.reader import Head, LeftOut, Row, Rows
from edge_client.formats.tags import OUTSIDE, parted

DOCUMENT = "-DOCSTART-"
LANGUAGE = re.compile(r"(simple|[a-z]{2,3}(?:-[a-z]+)*):")
SPACES = re.compile(" +")
LINE_END = re.compile("\r\n|\n|\r")  # no others: U+0085 and U+2028 may be of a word
GLOBAL = re.compile(r"#\s*global\.columns\s*=\s*(.+)")
FORMS, ENTITIES = ("FORM", "WORD", "TOKEN"), ("NER", "NE", "ENTITY", "ENTITIES", "BIO", "TAG")
U_COLUMNS, FORM, MISC = 10, 1, 9  # of CoNLL-U
IN_MISC = re.compile(r"(?:^|\|)(?:NER|NE|Entity|NamedEntity)=([^|]+)", re.IGNORECASE)
NOT_A_WORD = re.compile(r"\d+[-.]\d+")  # the number of several words in one, or of one left out


@dataclass(frozen=True)
class Conll:
    """Words in columns."""

    name: str = "words in columns"
    endings: tuple[str, ...] = (".conll", ".conllu", ".iob", ".bio", ".tsv")

    def sniff(self, head: Head) -> float:
        if head.ending != ".tsv":
            return 0.5
        first = next(_rows_in(head.text), "")
        row = columns_of(first)
        has_tags = len(row) > 1 and bool(parted(row[-1])[0])
        has_text = PLAIN.columns(first.split("\t")).text is not None
        if has_tags == has_text:
            return 0.5  # whatever is asked for
        return 0.6 if has_tags else 0.0

    def gives(self, head: Head) -> frozenset[Wants]:
        return frozenset(("text", "tags"))

    def read(self, source: Source) -> Rows:
        layout = layout_of(head_of(source.path, source.dialect), source)
        with source.lines() as lines:
            for block in blocks(lines, source, _is_between):
                if block.fault:
                    yield block.fault
                elif rows := layout.rows_of(block):
                    yield layout.text_of(block.line, rows)


CONLL = Conll()


@dataclass
class Layout:
    """Which column of a file holds what.

    Attributes:
        word: The words.
        tag: Their tags; None: they stand in MISC, as `NER=B-PER`.
        is_counted: Whether the first column is the number of a word.
        has_tags: Whether tags are wanted.
        prefix: The language before each word; None: still to be found.
        width: Columns of a row; 0: not known yet.
    """

    word: int = 0
    tag: int | None = -1
    is_counted: bool = False
    has_tags: bool = True
    prefix: str | None = ""
    width: int = 0

    def rows_of(self, block: Block) -> list[tuple[int, list[str]]]:
        """The rows of a block that are words, with their lines."""
        start = block.line - len(block.lines) + 1
        rows = [(line, columns_of(text)) for line, text in enumerate(block.lines, start=start)]
        self.width = next((len(row) for _, row in rows if not _is_marked(row)), self.width)
        return [(line, row) for line, row in rows if not self._is_aside(row)]

    def _is_aside(self, row: list[str]) -> bool:
        if self.is_counted and NOT_A_WORD.fullmatch(row[0]):
            return True
        if not _is_marked(row):
            return False
        if not self.has_tags and len(row) == 1 and not self.is_counted:
            return False  # a word alone, where that is enough
        # `#` may be a word too, in a row like the others and with a tag.
        return len(row) != (self.width or len(row)) or not parted(row[-1])[0] or self.is_counted

    def text_of(self, last: int, rows: Sequence[tuple[int, list[str]]]) -> Row | LeftOut:
        """A block's words and tags."""
        least = self.word + (2 if self.has_tags and self.tag == -1 else 1)
        for line, row in rows:
            if len(row) < max(least, (self.tag or 0) + 1 if self.has_tags else 0):
                said = "a word without a tag; both are expected, a tab between"
                return LeftOut(line, "tags" if self.has_tags else "columns", said)
            if not row[self.word].strip():
                said = "a tag without a word; both are expected, a tab between"
                return LeftOut(line, "tags", said)
        words = [row[self.word] for _, row in rows]
        if self.prefix is None:
            self.prefix = _prefix_of(words)
        words = [sys.intern(word.removeprefix(self.prefix)) for word in words]
        if any(not word.strip() for word in words):
            return LeftOut(last, "tags", "a tag without a word; both are expected, a tab between")
        columns = {"language": self.prefix[:-1]} if self.prefix else {}
        tags = [sys.intern(self._tag(row)) for _, row in rows] if self.has_tags else []
        return Row(last, columns, tuple(words), tuple(tags), tuple(line for line, _ in rows))

    def _tag(self, row: list[str]) -> str:
        if self.tag is not None:
            return row[self.tag]
        match = IN_MISC.search(row[MISC]) if len(row) > MISC else None
        return match[1] if match else OUTSIDE


def layout_of(head: str, source: Source) -> Layout:
    """The layout of a file, by its beginning; anything but word first, tag last is noted."""
    rows = [columns_of(line) for line in _rows_in(head)]
    if not head.endswith(("\n", "\r")):
        rows = rows[:-1] or rows  # the last may be cut
    rows = [row for row in rows if not _is_marked(row)]
    names = next(
        (match[1].split() for match in map(GLOBAL.match, LINE_END.split(head)) if match), []
    )
    layout = Layout(has_tags=source.wants == "tags")
    layout.prefix = None if ending_of(source.path) == ".tsv" else ""
    if names:
        _by_names(layout, names, source)
    elif rows and _is_counted(head):
        layout.is_counted, layout.word = True, FORM
        source.note("its second column as the words, since the first counts them")
    if layout.has_tags:
        _find_tags(layout, names, rows, source)
    return layout


def _by_names(layout: Layout, names: Sequence[str], source: Source) -> None:
    upper = [name.upper() for name in names]
    word = next((upper.index(name) for name in FORMS if name in upper), 0)
    layout.word, layout.is_counted = word, upper[0] == "ID"
    source.note(f"column {named([names[word]])} as the words, as # global.columns says")


def _find_tags(
    layout: Layout, names: Sequence[str], rows: Sequence[list[str]], source: Source
) -> None:
    """Which column holds the tags: that which is called so, or the one of those that look so."""
    ends = [name.upper().rsplit(":", 1)[-1] for name in names]
    called = next((ends.index(name) for name in ENTITIES if name in ends), None)
    if called is not None:
        layout.tag = called
        source.note(f"column {named([names[called]])} as the tags")
        return
    width = max(map(len, rows), default=0)
    types = {at: found for at in range(width) if (found := _types_in(rows, at)) is not None}
    types.pop(layout.word, None)
    is_u = layout.is_counted and width == U_COLUMNS and width - 1 not in types
    if is_u and any(IN_MISC.search(row[MISC]) for row in rows if len(row) > MISC):
        layout.tag = None
        source.note("the entities of its column MISC as the tags")
        return
    typed = {at: found for at, found in types.items() if found}
    fitting = {at for at, found in typed.items() if found <= {*source.labels}}
    if len(typed) < 2 and not (typed and width - 1 not in typed and width - 1 in types):
        return
    if source.labels and not fitting and width - 1 in types:
        return  # those are of something else, such as phrases
    of_these = sorted(fitting or typed)
    is_nested = layout.is_counted and width == layout.word + 3 and len(types) == 2
    layout.tag = of_these[0] if is_nested or width - 1 not in of_these else of_these[-1]
    others = " and ".join(str(at + 1) for at in sorted(types) if at != layout.tag and types[at])
    more = f", not column {others}, which holds tags too" if others else ""
    source.note(f"its column {layout.tag + 1} as the tags{more}")


def _types_in(rows: Sequence[list[str]], at: int) -> set[str] | None:
    """The types that a column of tags names; None: it holds something else."""
    cells = [row[at] for row in rows if len(row) > at]
    tags = [parted(cell) for cell in cells]
    if len(cells) < len(rows) or not all(letter for letter, _ in tags):
        return None
    return {label for _, label in tags if label}


def _is_counted(head: str) -> bool:
    """Whether the first column of each text counts its words, from 1 or from 0."""
    every = groupby(LINE_END.split(head), key=lambda line: bool(_is_between(line)))
    groups = [[*lines] for is_between, lines in every if not is_between]
    if len(groups) > 1 and not head.endswith("\n"):
        groups = groups[:-1]  # the last may be cut
    starts = set()
    for group in groups:
        rows = [row for row in map(columns_of, group) if not _is_marked(row)]
        rows = [row for row in rows if not NOT_A_WORD.fullmatch(row[0])]
        if any(len(row) < 3 for row in rows):
            return False
        numbers = [row[0] for row in rows]
        if not rows:
            continue
        if not numbers[0].isdecimal():
            return False
        first = int(numbers[0][:6])
        starts.add(first)
        if numbers != [str(first + place) for place in range(len(numbers))]:
            return False
    return len(starts) == 1 and starts <= {0, 1}


def _rows_in(head: str) -> Iterator[str]:
    """Lines that are rows, without their ends."""
    lines = (line for line in LINE_END.split(head) if not _is_between(line))
    return (line for line in lines if not line.startswith("# "))


def _is_between(line: str) -> bool:
    return not line.strip(" \t\r\n") or line.startswith(DOCUMENT)


def columns_of(line: str) -> list[str]:
    """A line's columns: with a tab in it those between tabs, else those between spaces."""
    line = line.rstrip(" \t\r\n")
    return [one.strip(" ") for one in line.split("\t")] if "\t" in line else SPACES.split(line)


def _is_marked(row: list[str]) -> bool:
    """Whether it begins as a comment does."""
    return row[0] == "#" or row[0].startswith("# ")


def _prefix_of(words: Sequence[str]) -> str:
    """The language that each word of a file stands behind, by its first text; or nothing."""
    found = {match[0] if (match := LANGUAGE.match(word)) else "" for word in words}
    return found.pop() if len(found) == 1 else ""
