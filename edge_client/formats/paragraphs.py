"""Plain text, one text per line or per paragraph; blocks of lines separated by blank lines.

Paragraphs are separated by blank lines. A folder's files are read in order of their names; its
sub-folders are not. The bounds for one file hold for all files of a folder together.

A block above the limit is skipped without being held in memory, and reading continues behind it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.lines import Lines, Whole, each_line
from smidgen.edge_client.formats.source import (
    MARK,
    DataError,
    LeftOut,
    Reason,
    Row,
    Rows,
    Source,
    Usual,
    ending_of,
)


class Block(NamedTuple):
    """Some lines of a file, with their ends.

    Attributes:
        line: Number of the last of them, or of the one that cannot be used.
        lines: The lines; none of a block that cannot be used.
        fault: Why it cannot be; None if it can.
    """

    line: int
    lines: list[str]
    fault: LeftOut | None = None


def blocks(lines: Lines, source: Source, is_between: Callable[[str], bool]) -> Iterator[Block]:
    """The blocks of a file.

    Law: a file's lines are those of its blocks, in order, and those between them.

    Args:
        lines: The file.
        source: What it is read as.
        is_between: Whether a line parts two blocks and belongs to neither.
    """
    held, fault, last = list[str](), None, 0
    for number, line, too_long in each_line(lines, is_row=False):
        if not too_long and is_between(line):
            if held or fault:
                yield Block(last, held, fault)
            held, fault = [], None
            lines.begin_row()
            continue
        if fault:
            continue
        if line.startswith(MARK) and number > 1:
            line = line[len(MARK) :]
            source.note("a byte-order mark inside the file, as joined files have it")
        reason: Reason = "too long" if too_long else "unreadable"
        said = too_long or source.unread(line)
        last, fault = number, LeftOut(number, reason, said) if said else None
        if fault:
            held = []
        else:
            held.append(line)
    if held or fault:
        yield Block(last, held, fault)


LINES = ".txt"
MOST_FILES = 100_000  # in a folder; each is looked at before each piece of work


def _read_lines(source: Source) -> Rows:
    """Each line is a row, blank ones too."""
    with source.lines() as lines:
        for number, line, fault in each_line(lines):
            text = line.rstrip("\r\n")
            if text.startswith(MARK) and number > 1:
                text = text[len(MARK) :]
                source.note("a byte-order mark inside the file, as joined files have it")
            if fault:
                yield LeftOut(number, "too long", fault)
            elif unread := source.unread(text):
                yield LeftOut(number, "unreadable", unread)
            else:
                yield Row(number, {"text": text})


def _read_folder(source: Source) -> Rows:
    """Each paragraph of each file is a row, with the line that it ends in."""
    whole, folder = Whole(source.path), source.path
    for path in _listed(folder):
        one = replace(source, path=path)
        with one.lines(whole) as lines:
            for block in blocks(lines, one, lambda line: not line.strip()):
                if block.fault:
                    yield replace(block.fault, file=str(path))
                    continue
                text = " ".join(line.strip() for line in block.lines)
                yield Row(block.line, {"text": text}, file=f"{folder.name}/{path.name}")


PLAIN_LINES = Usual("lines of text", (LINES,), frozenset(("text",)), _read_lines)
PARAGRAPHS = Usual("a folder of text files", ("",), frozenset(("text",)), _read_folder)


def files_in(folder: Path, most: int = MOST_FILES) -> list[Path]:
    """The text files of a folder, `.txt` or `.txt.gz`, in the order of their names.

    Raises:
        DataError: There are too many.
        OSError: It cannot be read.
    """
    names = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in names if ending_of(path) == LINES and path.is_file())
    demand(
        len(found) <= most,
        f"{folder} holds more than {most:,} files; join them into fewer",
        DataError,
    )
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return files_in(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
