"""CoNLL: one word per line, columns separated by tabs or spaces, a blank line between texts.

    Aspirin  NN  O  B-Drug
    helped   VBD O  O

The first column is the word and the last its tag, unless the file or the user says otherwise. In
`.tsv` a word may have its language and a colon in front, as in PAN-X, which are removed. Lines that
begin with -DOCSTART- and comments (`# ...`) are skipped.

What the columns are is said, in this order, by the user's options (`--text-column`,
`--label-column`: a name or a number), column names (`# global.columns`, or a first line of names),
CoNLL-U, and the columns' contents. What was detected is reported.

A first column of word numbers is never taken for words: `1 2 3`, `0 1 2`, `1-1 1-2`, and numbers
that continue from text to text or skip some.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from smidgen.edge_client.formats.paragraphs import Block, blocks
from smidgen.edge_client.formats.source import (
    PLAIN,
    DataError,
    Head,
    LeftOut,
    Row,
    Rows,
    Source,
    Wants,
    ending_of,
    head_of,
    named,
)
from smidgen.edge_client.formats.tags import OUTSIDE, parted

DOCUMENT = "-DOCSTART-"
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")  # Unicode's other line ends end none
GLOBAL = re.compile(r"#\s*global\.columns\s*=\s*(.+)")
FORMS = ("FORM", "WORD", "WORDS", "TOKEN", "TOKENS")
ENTITIES = ("NER", "NE", "NER_TAG", "NER_TAGS", "ENTITY", "ENTITIES", "BIO", "TAG", "TAGS", "LABEL")
U_COLUMNS, MISC = 10, 9  # of CoNLL-U
IN_MISC = re.compile(r"(?:^|\|)(?:NER|NE|Entity|NamedEntity)=([^|]+)", re.IGNORECASE)
NUMBER = re.compile(r"\d+(?:[-.:_]\d+)*[.:)]?")
RANGE = re.compile(r"\d+[-.]\d+")  # several words in one, or a word left out, beside plain numbers
PLACES = ("first", "second", "third")


@dataclass
class Layout:
    """What a file's columns hold.

    Attributes:
        word: The words' column.
        tag: Their tags'; None: they stand in MISC, as `NER=B-PER`.
        is_numbered: Whether a column before the words numbers them.
        has_ranges: Whether numbers such as 1-2 and 1.1 are beside plain ones; they are no words.
        has_names: Whether the first line names the columns.
        has_tags: Whether tags are wanted.
        prefix: The language before each word; None: still to be found.
    """

    word: int = 0
    tag: int | None = -1
    is_numbered: bool = False
    has_ranges: bool = False
    has_names: bool = False
    has_tags: bool = True
    prefix: str | None = ""


def layout_of(head: str, source: Source) -> Layout:
    """The layout of a file, by its beginning; anything but word first, tag last is noted.

    Raises:
        DataError: A column is named that is not there, or none of those named holds words or tags.
    """
    texts = _texts_in(head)
    named_by = (GLOBAL.match(line) for line in LINE.findall(head))
    names = next((match[1].split() for match in named_by if match), [])
    whose = "# global.columns says"
    layout = Layout(has_tags=source.wants == "tags")
    layout.prefix = None if ending_of(source.path) == ".tsv" else ""
    if not names and texts and has_names(texts[0][0]):
        names = texts[0].pop(0)
        texts = [text for text in texts if text]
        layout.has_names, whose = True, "its first line says"
    _find_words(layout, names, texts, source, whose)
    if layout.has_tags:
        _find_tags(layout, names, [row for text in texts for row in text], source)
    return layout


def _find_words(
    layout: Layout, names: Sequence[str], texts: Sequence[list[list[str]]], source: Source, who: str
) -> None:
    at = 0
    while _is_numbered(texts, at):
        at += 1
    layout.word = at
    if (told := _told(source.dialect.text_column, names, source)) is not None:
        layout.word = told
    elif names:
        upper = [name.upper() for name in names]
        layout.word = next((upper.index(name) for name in FORMS if name in upper), -1)
        if layout.word < 0:
            raise DataError(
                f"{source.path}: {who} that its columns are {named(names)}; one called "
                f"FORM, WORD or TOKEN is expected, or --text-column with its name"
            )
        source.note(f"column {named([names[layout.word]])} as the words, as {who}")
    elif at:
        place = PLACES[at] if at < len(PLACES) else f"{at + 1}th"
        source.note(f"its {place} column as the words, since the first counts them")
    layout.is_numbered = 0 < at <= layout.word
    are_plain = (row[0].isdecimal() for text in texts for row in text)
    layout.has_ranges = layout.is_numbered and any(are_plain)


def _told(column: str, names: Sequence[str], source: Source) -> int | None:
    """The column that the user says, by its number from 1 or its name; None: not said.

    A name is not looked for where columns have none: it may be meant for the tables of a folder.
    """
    if column.isdecimal() and 0 < int(column[:4]) <= 1000:
        return int(column[:4]) - 1
    if not column or not names:
        return None
    upper = [name.upper() for name in names]
    if column.upper() in upper:
        return upper.index(column.upper())
    raise DataError(
        f"{source.path}: there is no column {named([column])}; its columns are {named(names)}"
    )


def _find_tags(
    layout: Layout, names: Sequence[str], rows: Sequence[list[str]], source: Source
) -> None:
    """Which column holds the tags: that which is called so, or the one of those that look so."""
    width = max(map(len, rows), default=0)
    if (told := _told(source.dialect.label_column, names, source)) is not None:
        layout.tag = None if told == MISC and _has_entities(rows) else told
        return
    ends = [name.upper().rsplit(":", 1)[-1] for name in names]
    called = next((ends.index(name) for name in ENTITIES if name in ends), None)
    if called is not None:
        layout.tag = called
        source.note(f"column {named([names[called]])} as the tags")
        return
    types = {at: found for at in range(width) if (found := _types_in(rows, at)) is not None}
    types.pop(layout.word, None)
    if layout.is_numbered and width == U_COLUMNS and width - 1 not in types:
        if _has_entities(rows):
            layout.tag = None
            source.note("the entities of its column MISC as the tags")
            return
        if not types:
            raise DataError(
                f"{source.path} is CoNLL-U without tags: NER=B-TYPE is expected in its column "
                "MISC, or --label-column with the number of a column that holds tags"
            )
    _find_by_looks(layout, types, width, source)


def _find_by_looks(layout: Layout, types: dict[int, set[str]], width: int, source: Source) -> None:
    """The column that looks like tags.

    Args:
        layout: Gets it, where it is not the last.
        types: Of each column of tags, the types that it names.
        width: Columns.
        source: Gets a note; its labels tell which of several columns is meant.
    """
    typed = {at: found for at, found in types.items() if found}
    if not typed or (len(typed) == 1 and width - 1 in typed):
        return
    fitting = {at for at, found in typed.items() if found <= {*source.labels}}
    if source.labels and not fitting and width - 1 in types:
        return  # those are of something else, such as phrases
    of_these = sorted(fitting or typed)
    is_nested = layout.is_numbered and width == layout.word + 3 and len(types) == 2
    layout.tag = of_these[0] if is_nested or width - 1 not in of_these else of_these[-1]
    others = " and ".join(str(at + 1) for at in sorted(typed) if at != layout.tag)
    more = f", not column {others}, which holds tags too" if others else ""
    source.note(f"its column {layout.tag + 1} as the tags{more}")


def _has_entities(rows: Sequence[list[str]]) -> bool:
    return any(IN_MISC.search(row[MISC]) for row in rows if len(row) > MISC)


def _types_in(rows: Sequence[list[str]], at: int) -> set[str] | None:
    """The types that a column of tags names; None: it holds something else."""
    cells = [row[at] for row in rows if len(row) > at]
    tags = [parted(cell) for cell in cells]
    if len(cells) < len(rows) or not all(letter for letter, _ in tags):
        return None
    return {label for _, label in tags if label}


def _is_numbered(texts: Sequence[list[list[str]]], at: int) -> bool:
    """Whether a column numbers what stands behind it, and is neither words nor tags itself."""
    rows = [row for text in texts for row in text]
    if not rows or any(len(row) < at + 2 or not NUMBER.fullmatch(row[at]) for row in rows):
        return False
    orders = [_order(text, at) for text in texts]
    ascends = all(order == sorted(order) for order in orders)
    is_strict = all(len({*map(tuple, order)}) == len(order) for order in orders)
    if min(map(len, rows)) > at + 2 and at == 0:  # of the texts, or of the words
        return ascends and (len(rows) > 1 or orders[0][0][-1] in (0, 1))
    # The column, behind one that numbers or before a last one, may be words that are numbers.
    are_tags = all(parted(row[at + 1])[0] for row in rows)
    is_long = any(len(order) > 1 for order in orders)
    begins = {order[0][-1] for order in orders}
    return not are_tags and ascends and is_strict and is_long and begins in ({0}, {1})


def _order(text: Sequence[list[str]], at: int) -> list[list[int]]:
    """The numbers in a column, each by its parts; those that are not plain only without plain."""
    cells = [row[at] for row in text]
    plain = [[int(cell[:9])] for cell in cells if cell.isdecimal()]
    return plain or [[int(one[:9]) for one in re.findall(r"\d+", cell)] for cell in cells]


def _texts_in(head: str) -> list[list[list[str]]]:
    """The rows of each text, comments left out; the last text only where it is there in whole."""
    every = groupby(LINE.findall(head), key=is_between)
    texts = [[*lines] for is_gap, lines in every if not is_gap]
    if texts and not head.endswith(("\n", "\r")):
        texts[-1] = texts[-1][:-1] or texts[-1]  # its last line may be cut
    found = [[row for row in map(columns_of, lines) if not is_marked(row)] for lines in texts]
    return [rows for rows in found if rows]


def has_names(row: Sequence[str]) -> bool:
    """Whether a row names columns: one of words, one of tags, and no cell is a tag."""
    upper = {cell.upper() for cell in row}
    is_named = not upper.isdisjoint(FORMS) and not upper.isdisjoint((*ENTITIES, "POS", "UPOS"))
    return is_named and not any(parted(cell)[0] for cell in row)


def is_between(line: str) -> bool:
    """Whether a line parts two texts."""
    return not line.strip(" \t\r\n") or line.startswith(DOCUMENT)


def columns_of(line: str) -> list[str]:
    """A line's columns: with a tab in it those between tabs, else those between spaces."""
    line = line.rstrip(" \t\r\n")
    return [one.strip(" ") for one in line.split("\t")] if "\t" in line else re.split(" +", line)


def is_marked(row: Sequence[str]) -> bool:
    """Whether it begins as a comment does."""
    return row[0] == "#" or row[0].startswith("# ")


LANGUAGE = re.compile(r"(simple|[a-z]{2,3}(?:-[a-z]+)*):")


class Conll:
    """Words in columns."""

    name = "words in columns"
    endings = (".conll", ".conllu", ".iob", ".bio", ".tsv")

    def sniff(self, head: Head) -> float:
        """See `Reader`; a `.tsv` may as well be a table, which its first row tells."""
        if head.ending != ".tsv":
            return 0.5
        row = next((row for rows in _texts_in(head.text) for row in rows), [""])
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
                return LeftOut(
                    line,
                    "tags" if layout.has_tags else "columns",
                    "a word without a tag; both are expected, a tab between",
                )
            if not row[layout.word].strip():
                return LeftOut(
                    line, "tags", "a tag without a word; both are expected, a tab between"
                )
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
