"""Files of tagged words: a word per line, as CoNLL's tasks have them, or a text per line of JSON.

    Aspirin  NN  O  B-Drug        {"tokens": ["Aspirin", "helped"], "tags": ["B-Drug", "O"]}
    helped   VBD O  O

Of columns the first is the word and the last its tag, with tabs or spaces between. Lines that begin
with -DOCSTART- and comments (`# ...`) are passed over. In `.tsv`, as PAN-X has it, each word may
stand behind its language and a colon, which are taken off.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from edge_client.formats.dialect import PLAIN, Dialect
from edge_client.formats.blocks import Block, blocks, unread
from edge_client.formats.tags import Scheme, parted
from edge_client.formats.lines import BOUNDS, Bounds, Lines, LongLine
from edge_client.formats.opened import DataError, each_line, ending_of, opened

COLUMNS = (".conll", ".iob", ".bio", ".tsv")
FORMATS = (*COLUMNS, ".jsonl")
DOCUMENT = "-DOCSTART-"
LANGUAGE = re.compile(r"(simple|[a-z]{2,3}(?:-[a-z]+)*):")
SPACES = re.compile(" +")
Reader: TypeAlias = Callable[[Lines, str, Scheme | None], "Iterator[Tagged]"]


@dataclass(frozen=True)
class Tagged:
    """A text whose words are tagged.

    Attributes:
        line: Where it ends, or where it cannot be used, from 1.
        words: Its words; none of one that cannot be used, or is empty.
        tags: A tag of each; none where they are not looked at.
        language: The language that the file names, or empty.
        row: What else a row of JSON says.
        fault: Why it cannot be used; empty if it can.
    """

    line: int
    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    language: str = ""
    row: Mapping[str, str] = field(default_factory=dict)
    fault: str = ""


def tagged_texts(
    path: Path,
    labels: tuple[str, ...] | None,
    dialect: Dialect,
    notes: list[str],
    bounds: Bounds | None,
) -> Iterator[Tagged]:
    """The texts of a file in their order, good or not.

    Law: of a good one there are as many tags as words, no word is empty, and `Scheme` finds no
    fault; where tags are not looked at, no word is empty.

    Args:
        path: The file; its ending says the format.
        labels: Allowed types; empty allows any; None: tags are not looked at.
        dialect: How it is written down; of columns its encoding alone.
        notes: Gets what was found out without being told.
        bounds: What is read at most; None: all.

    Raises:
        DataError: No such format, the file cannot be read at all, or it holds too much.
    """
    ending = ending_of(path)
    if ending not in FORMATS:
        raise DataError(f"{path}: tagged words are expected, in {', '.join(FORMATS)} (.gz or not)")
    read: Reader = _of_json
    if ending != ".jsonl":
        read = partial(_of_columns, has_language=ending == ".tsv")
    with opened(path, dialect, notes, bounds) as (lines, encoding):
        yield from read(lines, encoding, None if labels is None else Scheme(labels))


def has_tokens(path: Path, dialect: Dialect) -> bool:
    """Whether the first row of a file of JSON tells words apart.

    Raises:
        DataError: It cannot be read at all.
    """
    with opened(path, dialect, [], None) as (lines, _):
        first = next((line for _, line, _ in each_line(lines) if line.strip()), "")
    return "tokens" in _object_of(first)


def is_of_words(path: Path) -> bool | None:
    """Whether a file holds tagged words, by its first row, where it may as well be a table.

    None: its ending says it, its first row is both, or it is neither.
    """
    ending = ending_of(path)
    if ending not in (".tsv", ".jsonl"):
        return None
    try:
        with opened(path, PLAIN, [], BOUNDS) as (lines, _):
            first = next((line for line in map(_row_of, lines) if line), "")
    except (DataError, LongLine):
        return None
    names, has_tags = first.split("\t"), False
    if ending == ".tsv":
        row = columns_of(first)
        has_tags = len(row) > 1 and bool(parted(row[-1])[0])
    else:
        found = _object_of(first)
        names, has_tags = list(found), {"tokens", "tags"} <= found.keys()
    has_text = PLAIN.columns(names).text is not None
    return has_tags if has_tags != has_text else None


def _row_of(line: str) -> str:
    """A line without its end; empty if it is no row."""
    return "" if _is_between(line) or line.startswith("# ") else line.rstrip("\r\n")


def _object_of(line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _of_columns(
    lines: Lines, encoding: str, scheme: Scheme | None, *, has_language: bool
) -> Iterator[Tagged]:
    width, prefix = 0, None if has_language else ""
    for block in blocks(lines, encoding, _is_between):
        if block.fault:
            yield Tagged(block.line, fault=block.fault)
            continue
        rows = [(line, columns_of(text)) for line, text in _numbered(block)]
        width = next((len(row) for _, row in rows if not _is_marked(row)), width)
        rows = [(line, row) for line, row in rows if not _is_comment(row, width, scheme)]
        if not rows:
            continue
        if prefix is None:
            prefix = _prefix_of([row[0] for _, row in rows])
        yield _of_rows(block.line, rows, scheme, prefix)


def _of_rows(
    last: int, rows: list[tuple[int, list[str]]], scheme: Scheme | None, prefix: str
) -> Tagged:
    words = tuple(sys.intern(row[0].removeprefix(prefix)) for _, row in rows)
    for word, (line, row) in zip(words, rows, strict=True):
        if scheme is not None and len(row) < 2:
            return Tagged(line, fault="a word without a tag; both are expected, a tab between")
        if not word.strip():
            return Tagged(line, fault="a tag without a word; both are expected, a tab between")
    if scheme is None:
        return Tagged(last, words, language=prefix[:-1])
    tags = tuple(sys.intern(row[-1]) for _, row in rows)
    if fault := scheme.fault(tags):
        return Tagged(rows[fault.place][0], fault=fault.said)
    return Tagged(last, words, tags, prefix[:-1])


def _numbered(block: Block) -> Iterator[tuple[int, str]]:
    return enumerate(block.lines, start=block.line - len(block.lines) + 1)


def _is_between(line: str) -> bool:
    return not line.strip(" \t\r\n") or line.startswith(DOCUMENT)


def columns_of(line: str) -> list[str]:
    """A line's columns: with a tab in it those between tabs, else those between spaces."""
    line = line.rstrip(" \t\r\n")
    return [one.strip(" ") for one in line.split("\t")] if "\t" in line else SPACES.split(line)


def _is_marked(row: list[str]) -> bool:
    """Whether it begins as a comment does."""
    return row[0] == "#" or row[0].startswith("# ")


def _is_comment(row: list[str], width: int, scheme: Scheme | None) -> bool:
    """Whether it is no word: `#` may be one too, in a row like the others and with a tag.

    Args:
        row: Its columns.
        width: How many the others have; 0 where there are none.
        scheme: None: tags are not looked at.
    """
    if not _is_marked(row):
        return False
    if scheme is None and len(row) == 1:
        return False  # a word alone, where that is enough
    return len(row) != (width or len(row)) or not parted(row[-1])[0]


def _prefix_of(words: list[str]) -> str:
    """The language that each word of a file stands behind, by its first text; or nothing."""
    found = {match[0] if (match := LANGUAGE.match(word)) else "" for word in words}
    return found.pop() if len(found) == 1 else ""


def _of_json(lines: Lines, encoding: str, scheme: Scheme | None) -> Iterator[Tagged]:
    for number, line, fault in each_line(lines):
        if fault or line.strip():
            yield (
                Tagged(number, fault=fault) if fault else _of_object(number, line, encoding, scheme)
            )


def _of_object(number: int, line: str, encoding: str, scheme: Scheme | None) -> Tagged:
    """A text of one line; a row without words is one without a text."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Tagged(number, fault=f"not JSON: {error}")
    needed = ["tokens"] if scheme is None else ["tokens", "tags"]
    named = " and ".join(f"`{name}`" for name in needed)
    if not isinstance(found, dict) or not set(needed) <= found.keys():
        return Tagged(number, fault=f"an object with {named} expected")
    words, tags = found.pop("tokens"), found.pop("tags", [])
    if scheme is None:
        tags = []  # whatever they are
    if not (_are_strings(words) and _are_strings(tags)):
        lists = "a list of strings is" if scheme is None else "two lists of strings are"
        return Tagged(number, fault=f"{named}: {lists} expected")
    row = {str(key): str(value) for key, value in found.items() if value is not None}
    language = row.get("language", "")
    if fault := unread("".join((*words, *tags, *row, *row.values())), encoding):
        return Tagged(number, fault=fault)
    if scheme is not None and len(words) != len(tags):
        told = f"{len(words)} tokens and {len(tags)} tags; a tag of each token is expected"
        return Tagged(number, fault=told)
    if any(not word.strip() for word in words):
        return Tagged(number, fault="an empty token; leave it out, and its tag")
    if scheme is not None and (wrong := scheme.fault(tags)):
        return Tagged(number, fault=f"token {wrong.place + 1}: {wrong.said}")
    interned = tuple(map(sys.intern, words)), tuple(map(sys.intern, tags))
    return Tagged(number, *interned, language=sys.intern(language), row=row)


def _are_strings(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
