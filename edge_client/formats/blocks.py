"""Lines that belong together, with blank ones between: a text's words, or a paragraph.

A block that is too long is passed over without being held, and what comes behind it is read.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from edge_client.formats.lines import Lines
from edge_client.formats.opened import NUL_FOUND, each_line, undecoded


class Block(NamedTuple):
    """Some lines of a file, with their ends.

    Attributes:
        line: Number of the last of them, or of the one that cannot be used.
        lines: The lines; none of a block that cannot be used.
        fault: Why it cannot be; empty if it can.
    """

    line: int
    lines: list[str]
    fault: str = ""


def blocks(lines: Lines, encoding: str, is_between: Callable[[str], bool]) -> Iterator[Block]:
    """The blocks of a file.

    Law: a file's lines are those of its blocks, in order, and those between them.

    Args:
        lines: The file.
        encoding: What its bytes were read as.
        is_between: Whether a line parts two blocks and belongs to neither.
    """
    held, fault, last = list[str](), "", 0
    for number, line, unreadable in each_line(lines, is_row=False):
        if not unreadable and is_between(line):
            if held or fault:
                yield Block(last, held, fault)
            held, fault = [], ""
            lines.begin_row()
            continue
        if fault:
            continue
        last, fault = number, unreadable or unread(line, encoding)
        if fault:
            held = []
        else:
            held.append(line)
    if held or fault:
        yield Block(last, held, fault)


def unread(text: str, encoding: str) -> str:
    """What was wrong with the bytes of a text; empty if nothing was."""
    return NUL_FOUND if "\0" in text else undecoded(text, encoding)
