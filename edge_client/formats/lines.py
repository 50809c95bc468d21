"""Reads lines within limits, against decompression bombs and endless files.

A line that is too long is skipped without being held, and reading continues after it; a file
without end is refused as a whole. Line ends are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

LONGEST_LINE = 1 << 20  # characters of a line, or of a CSV row that goes over several


@dataclass(frozen=True)
class ReadBounds:
    """What is read of one file at most.

    Attributes:
        lines: Lines, empty ones included.
        characters: Characters, unpacked.
    """

    lines: int = 2_000_000
    characters: int = 512 << 20


BOUNDS = ReadBounds()


@dataclass
class Whole:
    """What bounds hold of: one file, or all files of a folder, read one behind the other.

    Attributes:
        path: The file or folder.
        lines: Lines that were read of it.
        characters: Characters that were read of it.
    """

    path: Path
    lines: int = 0
    characters: int = 0


class LongLine(ValueError):
    """A line that is longer than `LONGEST_LINE`; says so."""


class TooMuch(ValueError):
    """A file that holds more than its bounds; says what, and what to do."""


class Lines:
    """The lines of a file; after a `LongLine` the next call goes on behind that line.

    Args:
        file: Read from where it stands.
        bounds: What is read at most; None: to its end.
        whole: What the bounds hold of, and what was read of it before; None: of this file alone.

    Raises:
        LongLine: From `next`.
        TooMuch: From `next`; there is nothing more to come.

    Attributes:
        number: Of the line read last, from 1.
    """

    def __init__(
        self, file: TextIO, bounds: ReadBounds | None = None, whole: Whole | None = None
    ) -> None:
        self._file, self._bounds, self._whole = file, bounds, whole or Whole(Path())
        self._row = 0  # characters since the last row began
        self._ahead: str | LongLine | None = None  # the first line, looked at before it is read
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._ahead is not None:
            ahead, self._ahead, self.number = self._ahead, None, 1
            if isinstance(ahead, LongLine):
                raise ahead
            return ahead
        line = self._piece()
        if not line:
            raise StopIteration
        self.number += 1
        self._whole.lines += 1
        if self._bounds is not None and self._whole.lines > self._bounds.lines:
            raise TooMuch(f"more than {self._bounds.lines:,} lines; keep fewer")
        self._row += len(line)
        if self._row > LONGEST_LINE:
            self._row = 0
            while line and not line.endswith(("\n", "\r")):
                line = self._piece()
            raise LongLine(f"longer than {LONGEST_LINE:,} characters")
        return line

    def first(self) -> str:
        """The first line, which is still to be read; empty where there is none, or a long one."""
        try:
            self._ahead = next(self, None)
        except LongLine as error:
            self._ahead = error
        self.number = 0
        return self._ahead if isinstance(self._ahead, str) else ""

    def begin_row(self) -> None:
        """The row that the last line belongs to is complete."""
        self._row = 0

    def start(self, characters: int) -> str:
        """The first characters of a file of which no line is read."""
        return self._file.read(characters)

    def rest(self, most: int) -> str | None:
        """All that is still to come; None where it is more than so many characters."""
        parts, left = list[str](), most
        if isinstance(self._ahead, str):
            parts, left, self._ahead = [self._ahead], most - len(self._ahead), None
        while left >= 0 and (piece := self._piece()):
            parts.append(piece)
            left -= len(piece)
        return "".join(parts) if left >= 0 else None

    def _piece(self) -> str:
        piece = self._file.readline(LONGEST_LINE + 1)
        self._whole.characters += len(piece)
        if self._bounds is not None and self._whole.characters > self._bounds.characters:
            raise TooMuch(f"more than {self._bounds.characters:,} characters; keep fewer")
        return piece


def each_line(lines: Lines, *, is_row: bool = True) -> Iterator[tuple[int, str, str]]:
    """Number, line and what is wrong with it.

    Args:
        lines: The file.
        is_row: Whether each line is a row by itself; else the caller says where one begins.
    """
    while True:
        if is_row:
            lines.begin_row()
        try:
            line = next(lines, None)
        except LongLine as error:
            yield lines.number, "", str(error)
            continue
        if line is None:
            return
        yield lines.number, line, ""
