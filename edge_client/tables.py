"""Tables and units as every command prints them, for people; `--json` is for machines.

A table has a header, a thin rule and aligned columns: numbers right, words left, no borders. It
fits its terminal without being cut; in a pipe or file every row is one line.

    round  accuracy   loss  sent
    -----  --------  -----  --------
        1    41.2 %  1.310  24.2 KiB

Bytes are KiB, MiB and GiB, steps of 1024, as `--memory-budget 512M`, cgroups and systemd count: a
figure read here can be typed there. Seconds are `s`, shares `%`.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Literal

from rich.cells import cell_len

NARROW = 80  # columns of a terminal that does not say
READABLE = 100  # columns of prose, however wide the terminal
TEXT_LEAST = 20  # columns that free text may be squeezed to
GAP = "  "
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: A short heading; may break between words.
        kind: `number` is set right and `word` left, both never broken; `text` wraps at spaces.
        optional: Whether it may be left out on a narrow terminal, the highest first; 0: never.
    """

    name: str
    kind: Literal["number", "word", "text"] = "number"
    optional: int = 0


@dataclass(frozen=True)
class Table:
    """A table, without knowing where it will be printed.

    Attributes:
        columns: At least one.
        rows: One cell per column.
        title: Above the table.
        notes: Below it, one paragraph each: what the columns mean.
        more: How to see columns that were left out.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    more: str = "--json"


def show(*tables: Table, file: IO[str] | None = None) -> None:
    """Print tables, with a line between them, to stdout or a file."""
    out = sys.stdout if file is None else file
    width = terminal_width(out)
    print("\n\n".join(render(table, width) for table in tables), file=out, flush=True)


def tell(lines: Iterable[str], file: IO[str] | None = None) -> None:
    """Print paragraphs as notes of a table are: broken at words on a terminal, whole elsewhere."""
    out = sys.stdout if file is None else file
    width = terminal_width(out)
    for line in lines:
        print(line if width is None else "\n".join(paragraph(line, width)), file=out, flush=True)


def terminal_width(file: IO[str]) -> int | None:
    """Columns of the terminal that a file is; None if it is none.

    `COLUMNS` goes before what the terminal says, as in other programs.
    """
    if not file.isatty():
        return None
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and 0 < int(said) < 10_000:
        return int(said)
    try:
        return os.get_terminal_size(file.fileno()).columns or NARROW
    except OSError:
        return NARROW


def render(table: Table, width: int | None = None) -> str:
    """A table as text.

    No line is wider than `width`, unless a single word is. Without a width nothing is wrapped but
    the notes.
    """
    clean = replace(table, rows=[[plain(cell) for cell in row] for row in table.rows])
    prose = READABLE if width is None else min(width, READABLE)
    parts = [line for line in [plain(table.title)] if line]
    if width is not None:
        parts = [line for part in parts for line in paragraph(part, width)]
    left_out: list[str] = []
    while (widths := _widths(clean, width)) is None:
        place = _droppable(clean)
        if place is None:
            break
        left_out.insert(0, clean.columns[place].name)
        clean = _without(clean, place)
    parts += _stacked(clean, prose) if widths is None else _grid(clean, widths)
    notes = [plain(note) for note in table.notes]
    if left_out:
        verb = "is" if len(left_out) == 1 else "are"
        notes.append(f"{', '.join(left_out)} {verb} left out to fit; see {table.more}")
    return "\n".join([*parts, *(line for note in notes for line in paragraph(note, prose))])


def plain(text: str) -> str:
    """Text on one line, without control characters: a name from elsewhere moves no cursor."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "?" for letter in text
    )


def paragraph(text: str, width: int) -> list[str]:
    """Lines of text that goes on indented."""
    first, *rest = _wrapped(text, width)
    below = _wrapped(" ".join(rest), width - 2) if rest else []
    return [first, *(f"  {line}" for line in below)]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces only; a wider word stands alone."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line]


def _widths(table: Table, width: int | None) -> list[int] | None:
    """How wide each column is to be; None if they do not fit."""
    natural, least = [], []
    for column, cells in zip(table.columns, _by_column(table), strict=True):
        widest = max((cell_len(cell) for cell in cells), default=0)
        heading = _longest_word([column.name])
        natural.append(max(widest, cell_len(column.name)))
        if column.kind == "text":
            widest = min(widest, max(TEXT_LEAST, _longest_word(cells)))
        least.append(max(widest, heading))
    gaps = len(GAP) * (len(natural) - 1)
    if width is None or sum(natural) + gaps <= width:
        return natural
    spare = width - gaps - sum(least)
    if spare < 0:
        return None
    missing = [want - have for want, have in zip(natural, least, strict=True)]
    texts = [place for place, column in enumerate(table.columns) if column.kind == "text"]
    while spare and any(missing[place] for place in texts):  # to the text that misses most
        place = max(texts, key=lambda place: missing[place])
        least[place], missing[place], spare = least[place] + 1, missing[place] - 1, spare - 1
    for place, more in enumerate(missing):  # a heading breaks or it does not
        if more <= spare:
            least[place], spare = least[place] + more, spare - more
    return least


def _longest_word(texts: Iterable[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _by_column(table: Table) -> list[tuple[str, ...]]:
    if not table.rows:
        return [() for _ in table.columns]
    return list(zip(*table.rows, strict=True))


def _droppable(table: Table) -> int | None:
    """Which column goes first, the last of equals."""
    ranks = [column.optional for column in table.columns]
    highest = max(ranks) if len(ranks) > 1 else 0
    return len(ranks) - 1 - ranks[::-1].index(highest) if highest else None


def _without(table: Table, place: int) -> Table:
    rows = [[*row[:place], *row[place + 1 :]] for row in table.rows]
    columns = [*table.columns[:place], *table.columns[place + 1 :]]
    return replace(table, columns=columns, rows=rows)


def _grid(table: Table, widths: Sequence[int]) -> list[str]:
    heads = [
        _wrapped(column.name, width) for column, width in zip(table.columns, widths, strict=True)
    ]
    tall = max(map(len, heads))
    lines = _beside(table.columns, widths, [[""] * (tall - len(head)) + head for head in heads])
    lines.append(GAP.join("-" * width for width in widths))
    for row in table.rows:
        blocks = [
            _wrapped(cell, width) if column.kind == "text" else [cell]
            for column, cell, width in zip(table.columns, row, widths, strict=True)
        ]
        lines += _beside(table.columns, widths, blocks)
    return lines


def _beside(
    columns: Sequence[Column], widths: Sequence[int], blocks: Sequence[Sequence[str]]
) -> list[str]:
    """Cells of one row beside each other, each some lines tall."""
    lines = []
    for at in range(max(map(len, blocks))):
        parts = []
        for column, width, block in zip(columns, widths, blocks, strict=True):
            text = block[at] if at < len(block) else ""
            space = " " * (width - cell_len(text))
            parts.append(f"{space}{text}" if column.kind == "number" else f"{text}{space}")
        lines.append(GAP.join(parts).rstrip())
    return lines


def _stacked(table: Table, width: int) -> list[str]:
    """One line per cell, where the columns do not fit beside each other."""
    names = max(cell_len(column.name) for column in table.columns)
    lines: list[str] = []
    for row in table.rows:
        lines += [""] if lines else []
        for column, cell in zip(table.columns, row, strict=True):
            head = column.name + " " * (names - cell_len(column.name))
            block = _wrapped(cell, max(TEXT_LEAST, width - names - len(GAP)))
            for text in block:
                lines.append(f"{head}{GAP}{text}".rstrip())
                head = " " * names
    return lines


def share(value: float | None) -> str:
    """A share as per cent; `-` where it is not known."""
    return "-" if value is None else f"{100 * value:.1f} %"


def share_within(value: float | None, error: float | None) -> str:
    """A share as per cent with its standard error: `71.0 +- 2.0 %`.

    Args:
        value: The share; None where it is not known.
        error: 0 where there is none to tell, None where nobody can tell it.
    """
    if value is None or error == 0.0:
        return share(value)
    return f"{100 * value:.1f} +- {'?' if error is None else f'{100 * error:.1f}'} %"


def seconds(value: float | None) -> str:
    """Seconds measured or estimated; `-` where they are not known."""
    return "-" if value is None else f"{_figure(value)} s"


def span(value_s: float) -> str:
    """How long ago, or until: whole seconds, minutes, hours or days."""
    for unit, length_s, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if value_s < most * length_s:
            return f"{max(0, round(value_s / length_s))} {unit}"
    return f"{round(value_s / 86400)} d"


def some(number: int, noun: str) -> str:
    """So many of something whose plural ends in s: `1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(value: int | float | None) -> str:
    """Bytes in the unit that suits them; `-` where they are not known."""
    if value is None:
        return "-"
    power = _power(abs(value))
    return f"{_figure(value / 1024**power) if power else round(value)} {UNITS[power]}"


def sizes(values: Sequence[int | float | None]) -> list[str]:
    """Bytes of one column, all in the unit of the largest, so that they compare at a glance.

    As many figures stand behind the point as the smallest needs, three at most.
    """
    known = [abs(value) for value in values if value]
    power = _power(max(known, default=0))
    least = min(known, default=0) / 1024**power
    behind = 1 + sum(least < bound for bound in (0.05, 0.005)) if power else 0
    return [
        "-" if value is None else f"{value / 1024**power:.{behind}f} {UNITS[power]}"
        for value in values
    ]


def _power(value: float) -> int:
    """Which of `UNITS` a number of bytes is told in."""
    power = 0
    while value >= 1000 and power < len(UNITS) - 1:
        value, power = value / 1024, power + 1
    return power


def _figure(value: float) -> str:
    """Three figures, and no more than three behind the point."""
    if not value:
        return "0"
    behind = sum(abs(value) < bound for bound in (99.95, 9.995, 0.0995))
    return f"{value:.{behind}f}"


def shown(text: str, width: int | None = None) -> str:
    """A text in one line that cannot write to the terminal: other signs than print are `?`.

    Args:
        text: Whatever it holds.
        width: Most characters, the three dots of a longer text included; None: all.
    """
    line = "".join(letter if prints(letter) else "?" for letter in " ".join(text.split()))
    return line if width is None or len(line) <= width else f"{line[: width - 3]}..."


def prints(letter: str) -> bool:
    """Whether a letter draws something, or joins what is beside it as some scripts need."""
    # Persian, many Indic scripts and emoji are joined by these two
    return letter.isprintable() or letter in "\u200c\u200d"
