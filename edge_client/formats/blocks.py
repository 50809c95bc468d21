"""Blocks of lines separated by blank lines: the words of one CoNLL text, or a paragraph.

A block above the limit is skipped without being held in memory, and reading continues behind it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge_client.formats.lines import Lines, each_line
from edge_client.formats.opened import MARK, Source
from edge_client.formats.reader import LeftOut, Reason


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
