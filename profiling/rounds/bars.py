"""A round's step in a terminal: one bar per device, one letter per phase.

    device  waited|working, 0.3 s a letter      work       peak  in
    ------  ------------------------------  --------  ---------  -----
    a       <.....|ddtttttttttttttttttttuu    12.4 s  379.0 MiB  train
    b           ..|dttttttttu                  5.1 s  377.2 MiB  train

On a terminal with colours each letter has the background colour of its phase in pictures.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from edge_client.tables import GAP, NARROW, Column, Table, render, seconds, sizes, terminal_width
from edge_client.wire.reports import SAID
from profiling.rounds.picture import COLOURS
from profiling.rounds.waterfall import WAIT, PhaseSpan, Step, Straggler

LETTERS = {
    "download": "d",
    "load": "o",
    "tokenize": "k",
    "cache": "c",
    "label": "l",
    "train": "t",
    "evaluate": "e",
    "encode": "n",
    "upload": "u",
}
WAITED, CUT, GIVEN = ".", "<", "|"
WAITING = 6  # columns, however long it was
NARROWEST = 16  # columns of a bar
WIDE = 100  # columns where nobody says
MOST = 20  # devices
STRAGGLES = 1.1  # times the median


def show_steps(steps: Sequence[Step]) -> None:
    """Print steps, in colours where there are some."""
    width = terminal_width(sys.stdout)
    for place, step in enumerate(steps):
        if place:
            print()
        text = render(step_table(step, width or WIDE, is_last=step is steps[-1]), width)
        console = Console(file=sys.stdout, width=width or WIDE)
        if console.color_system in ("256", "truecolor"):  # sixteen colours are too few
            console.print(coloured(text), soft_wrap=True)
        else:
            print(text, flush=True)


def step_table(step: Step, width: int = NARROW, is_last: bool = True) -> Table:
    """A step as a table that is `width` columns wide, if its bars can be drawn in that.

    Args:
        step: What devices did.
        width: Columns.
        is_last: Whether letters are explained below it.
    """
    pieces = step.pieces[:MOST]
    others = [_cells(piece) for piece in pieces]
    peaks = sizes([piece.peak_rss_bytes for piece in pieces])
    is_marked = any(piece.mark for piece in pieces)
    for cells, peak in zip(others, peaks, strict=True):
        cells[2:2] = [peak]
        if not is_marked:
            cells.pop()
    columns = [Column("device", "word"), Column("work"), Column("peak", optional=1)]
    columns += [Column("in", "word", optional=2)]
    columns += [Column("", "word")] if is_marked else []
    heads = [column.name for column in columns]
    taken = sum(max(map(cell_len, cells)) for cells in zip(heads, *others, strict=True))
    room = max(NARROWEST, width - taken - len(GAP) * len(columns))
    cell_s = max(piece.work_s for piece in pieces) / max(1, room - WAITING - 1)
    scale = seconds(cell_s) if cell_s >= 0.01 else f"{1e3 * cell_s:.1f} ms"
    bars = Column(f"waited{GIVEN}working, {scale} a letter", "word")
    columns[1:1] = [bars]
    rows = [
        [first, _bar(piece, cell_s, room), *rest]
        for piece, (first, *rest) in zip(pieces, others, strict=True)
    ]
    title = f"{step.title}: devices, the slowest first (measured by the devices)"
    return Table(columns, rows, title, tuple(_notes(step, is_last)))


def _cells(piece: PhaseSpan) -> list[str]:
    return [piece.device_id, seconds(piece.work_s), piece.peak_phase or "-", piece.mark]


def _bar(piece: PhaseSpan, cell_s: float, room: int) -> str:
    waited = round(piece.wait_s / cell_s) if cell_s else 0
    left = WAITED * waited if waited <= WAITING else CUT + WAITED * (WAITING - 1)
    bar, spent_s = "", 0.0
    for name, more_s in piece.phases_s.items():
        spent_s += more_s
        end = round(spent_s / cell_s) if cell_s else 0
        bar += LETTERS.get(name, "?") * (end - len(bar))
    return f"{left:>{WAITING}}{GIVEN}{bar}"[:room]


def _notes(step: Step, is_last: bool) -> Iterator[str]:
    straggler = step.straggler()
    if straggler is not None:
        yield f"straggler: {_behind(straggler)}"
    peak = step.peak
    where = f"in {peak.peak_phase}" if peak.peak_phase else "held before this work began"
    if not peak.is_peak_of_work:
        where = "of its process's life so far: its kernel lets no peak begin with a piece of work"
    yield f"memory peak: {sizes([peak.peak_rss_bytes])[0]} on {peak.device_id}, {where}"
    if len(step.pieces) > MOST:
        yield f"and {len(step.pieces) - MOST} more devices; see --json"
    codes = sorted({piece.failure for piece in step.pieces if piece.failure})
    yield from (f"{code}: {said}" for code, said in SAID.items() if code in codes)
    if any(piece.is_late for piece in step.pieces):
        yield "late: the step was closed before the answer came"
    if is_last:
        yield ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
        yield (
            f"each device from when it was given its work ({GIVEN}), since devices share no clock; "
            f"left of it what it waited, {CUT} where that was longer"
        )


def _behind(found: Straggler) -> str:
    if found.times_median is not None and found.times_median < STRAGGLES:
        return f"none; {found.device_id} was the slowest, by {seconds(found.behind_s)}"
    times = f" ({found.times_median:.1f} times the median)" if found.times_median else ""
    said = f"{found.device_id}, {seconds(found.behind_s)} after the next{times}"
    if found.phase_behind_s <= 0:
        return said
    return f"{said}; {found.phase} took {seconds(found.phase_behind_s)} more than the median's"


def coloured(text: str) -> Text:
    """Bars on the colours of their phases."""
    shades = {letter: COLOURS[name] for name, letter in LETTERS.items()}
    shades |= dict.fromkeys(WAITED + CUT, COLOURS[WAIT])
    found = Text(text)
    start = 0
    for line in text.splitlines(keepends=True):
        place, end = _span(line)
        for letter, run in groupby(line[place:end]):
            length = len(list(run))
            if shade := shades.get(letter):
                style = Style(color="#ffffff", bgcolor=shade)
                found.stylize(style, start + place, start + place + length)
            place += length
        start += len(line)
    return found


def _span(line: str) -> tuple[int, int]:
    """Where a row's bar is: around its one `|`, between blanks."""
    given = line.find(GIVEN)
    if given < WAITING or set(line[given - WAITING : given]) - {" ", WAITED, CUT}:
        return 0, 0
    end = line.find(" ", given)
    return given - WAITING, len(line.rstrip()) if end < 0 else end
