"""Charts of a run's rounds: results, costs, waiting; and one round's phases in a terminal.

device  waited|working, 0.3 s a letter      work       peak  in
    ------  ------------------------------  --------  ---------  -----
    a       <.....|ddtttttttttttttttttttuu    12.4 s  379.0 MiB  train
    b           ..|dttttttttu                  5.1 s  377.2 MiB  train

On a terminal with colours each letter has the background colour of its phase in pictures.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from smidgen.edge_client.tables import (
    GAP,
    NARROW,
    Column,
    Table,
    render,
    seconds,
    size,
    sizes,
    terminal_width,
)
from smidgen.edge_client.wire.reports import SAID
from smidgen.profiling.canvas import (
    INK,
    PALE,
    PALETTE,
    SMALL,
    accuracy_axis,
    heading,
    legend_below,
    new_figure,
    plain,
    rounds_axis,
    save,
    say,
)
from smidgen.profiling.rounds.costs import PHASES, WAIT, RoundCost
from smidgen.profiling.rounds.waterfall import PhaseSpan, Step, Straggler

COLOURS = {
    WAIT: "#9aa3ad",
    "download": PALETTE[6],
    "load": PALETTE[4],
    "tokenize": "#c9a86a",
    "cache": "#7d8ca3",
    "label": PALETTE[7],
    "train": PALETTE[0],
    "evaluate": PALETTE[3],
    "encode": "#b59bd6",
    "upload": PALETTE[1],
}
DASHES = ("--", ":", "-.")


def file_title(figures: Path, costs: Sequence[RoundCost]) -> str:
    """What a file of figures says about its run, which is not its base, adapter or machine."""
    last = max((cost.round_index for cost in costs), default=0)
    most = max((cost.clients for cost in costs), default=0)
    day = time.strftime("%Y-%m-%d", time.localtime(figures.stat().st_mtime))
    return f"{figures.name} of {day}: {last} rounds, clients that trained in one: up to {most}"


def draw_rounds(
    costs: Sequence[RoundCost], path: Path, title: str, levels: Sequence[tuple[str, float]] = ()
) -> None:
    """Draw accuracy, computing, waiting and traffic by round as a PNG.

    Args:
        costs: One per round.
        path: The PNG to write.
        title: Above the picture: data, base, adapter, run, date and machine, as far as known.
        levels: Named accuracies to compare with, drawn as dashed lines.
    """
    save(rounds_figure(costs, title, levels), path)


def rounds_figure(
    costs: Sequence[RoundCost], title: str, levels: Sequence[tuple[str, float]] = ()
) -> Any:
    """The picture, unsaved; see `draw_rounds`."""
    peak = max((cost.peak_rss_bytes for cost in costs), default=0)
    figure = new_figure(10.5, 7.2, f"{title}\npeak memory of a client {size(peak)} (VmHWM)")
    (gave, computed), (sent, waited) = figure.subplots(2, 2)
    _accuracy(gave, costs, levels)
    trained = [cost for cost in costs if cost.phases_s or cost.bytes_up]
    phases = [phase for phase in PHASES if phase != WAIT]
    _seconds(computed, trained, phases, "training and labelling: median of each phase over clients")
    _seconds(waited, trained, [WAIT], "waiting for that work: median over clients")
    _traffic(sent, trained)
    for axis in (gave, computed, waited, sent):
        rounds_axis(axis, max((cost.round_index for cost in costs), default=0))
    plain((gave, computed, waited, sent))
    return figure


def _accuracy(axis: Any, costs: Sequence[RoundCost], levels: Sequence[tuple[str, float]]) -> None:
    scored = [(c.round_index, 100 * c.score) for c in costs if c.score is not None]
    word = "F1 of entities" if any(c.f1 is not None for c in costs) else "accuracy"
    axis.plot(
        [index for index, _ in scored],
        [accuracy for _, accuracy in scored],
        color=PALETTE[0],
        marker="o",
        markersize=4,
        label="all devices, one adapter" + (f": {scored[-1][1]:.1f}" if scored else ""),
    )
    for number, (name, level) in enumerate(levels):
        style = {"color": PALETTE[1], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.2}
        axis.axhline(100 * level, **style, label=f"{name}: {100 * level:.1f}")
    accuracy_axis(axis)
    heading(axis, f"what it gave: {word} on the devices' test texts")
    legend_below(axis, columns=3)


def _seconds(axis: Any, costs: Sequence[RoundCost], phases: Sequence[str], said: str) -> None:
    """Bars of phases on each other, in the order of a round; each a median over clients."""
    floor = [0.0] * len(costs)
    for phase in phases:
        seconds = [cost.phases_s.get(phase, 0.0) for cost in costs]
        if any(seconds):
            places = [cost.round_index for cost in costs]
            axis.bar(places, seconds, bottom=floor, color=COLOURS[phase], label=phase)
            floor = [below + more for below, more in zip(floor, seconds, strict=True)]
    axis.set(ylabel="seconds", ylim=(0, 1.05 * max(floor, default=0) or 1))
    heading(axis, said)
    if not any(floor):
        say(axis, "none was measured")
    if len(phases) > 1:
        legend_below(axis, columns=6)


def _traffic(axis: Any, costs: Sequence[RoundCost]) -> None:
    highest = 0
    for offset, name in ((-0.2, "up"), (0.2, "down")):
        counts = [cost.bytes_up if name == "up" else cost.bytes_down for cost in costs]
        shade = COLOURS["upload" if name == "up" else "download"]
        places = [cost.round_index + offset for cost in costs]
        axis.bar(places, [count / 1024 for count in counts], 0.4, color=shade, label=name)
        highest = max(highest, *counts, 0)
    axis.set(ylabel="KiB", ylim=(0, 1.05 * highest / 1024 or 1))
    is_by_kernel = all(cost.is_by_kernel for cost in costs)
    counted = "TCP, by the kernel" if is_by_kernel else "bodies alone"
    heading(axis, f"sent and received ({counted}): median over clients")
    legend_below(axis, columns=2)


MOST = 40  # devices of a step
WAITED_MOST = 0.25  # of the longest work; a longer wait is cut
BAR = 0.7
SHADE = 0.6


def draw_waterfall(steps: Sequence[Step], path: Path, title: str) -> None:
    """Draw a round's steps below each other.

    Args:
        steps: Of one round.
        path: File to write; its name says the format.
        title: Above the picture.
    """
    save(waterfall_figure(steps, title), path)


def waterfall_figure(steps: Sequence[Step], title: str) -> Any:
    """The picture, unsaved; see `draw_waterfall`."""
    counts = [min(MOST, len(step.pieces)) for step in steps]
    figure = new_figure(10.5, 1.5 + sum(0.9 + 0.3 * count for count in counts), title)
    heights = [3 + count for count in counts]
    grid = figure.subplots(
        len(steps), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 1), sharey="row"
    )
    for step, (times, memory) in zip(steps, grid, strict=True):
        _times(times, step)
        _memory(memory, step)
        plain((times, memory))
    _legend(figure, steps)
    return figure


def _times(axis: Any, step: Step) -> None:
    pieces = step.pieces[:MOST]
    longest_s = max(piece.work_s for piece in pieces) or 1.0
    for place, piece in enumerate(pieces):
        _wait(axis, place, piece, WAITED_MOST * longest_s)
        start_s = 0.0
        for name, spent_s in piece.phases_s.items():
            axis.barh(place, spent_s, BAR, left=start_s, color=COLOURS[name], **_look(piece))
            start_s += spent_s
        mark = f", {piece.mark}" if piece.mark else ""
        axis.text(start_s, place, f"  {seconds(start_s)}{mark}", va="center", fontsize=SMALL)
    _behind(axis, step)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set(xlim=(-1.05 * WAITED_MOST * longest_s, 1.3 * longest_s))
    axis.set(xlabel="seconds since the device was given its work; left of 0: waited")
    axis.set(ylim=(len(pieces) - 0.4, -0.6))
    axis.set_yticks(range(len(pieces)), [piece.device_id for piece in pieces])
    more = len(step.pieces) - len(pieces)
    heading(axis, step.title + (f" (the slowest {MOST}; {more} more)" if more else ""))


def _wait(axis: Any, place: int, piece: PhaseSpan, most_s: float) -> None:
    shown_s = min(piece.wait_s, most_s)
    axis.barh(place, -shown_s, BAR, color=COLOURS[WAIT])
    if piece.wait_s > most_s:
        said = f"{seconds(piece.wait_s)} "
        axis.text(0, place, said, va="center", ha="right", fontsize=SMALL - 1, color="white")


def _look(piece: PhaseSpan) -> dict[str, Any]:
    return {"hatch": "////", "edgecolor": "white", "linewidth": 0} if piece.mark else {}


def _behind(axis: Any, step: Step) -> None:
    """A shaded span from the second slowest to the slowest: what the others waited."""
    straggler = step.straggler()
    if straggler is None:
        return
    next_s = straggler.work_s - straggler.behind_s
    axis.axvspan(next_s, straggler.work_s, color=PALE, alpha=SHADE, linewidth=0, zorder=0)


def _memory(axis: Any, step: Step) -> None:
    """Peaks, each in the colour of the phase that it was reached in."""
    pieces = step.pieces[:MOST]
    for place, piece in enumerate(pieces):
        shade = COLOURS[piece.peak_phase] if piece.peak_phase else PALE
        mebibytes = piece.peak_rss_bytes / (1 << 20)
        axis.barh(place, mebibytes, BAR, color=shade)
        said = f"  {size(piece.peak_rss_bytes)}" + (
            "" if piece.is_peak_of_work else " (of its life)"
        )
        axis.text(mebibytes, place, said, va="center", fontsize=SMALL)
    highest = max(piece.peak_rss_bytes for piece in pieces) / (1 << 20)
    axis.set(xlabel="MiB (VmHWM)", xlim=(0, 1.6 * highest or 1))
    axis.tick_params(labelleft=False)
    heading(axis, "memory peak, and its phase")


def _legend(figure: Any, steps: Sequence[Step]) -> None:
    from matplotlib.patches import Patch

    seen = {name for step in steps for piece in step.pieces for name in piece.phases_s}
    parts = [Patch(color=COLOURS[name], label=name) for name in PHASES if name in {WAIT, *seen}]
    pieces = [piece for step in steps for piece in step.pieces]
    if any(step.straggler() for step in steps):
        parts.append(Patch(color=PALE, alpha=SHADE, label="waited for the straggler"))
    if any(piece.mark for piece in pieces):
        said = "failed or late: nothing came of it"
        parts.append(Patch(facecolor=INK, hatch="////", edgecolor="white", linewidth=0, label=said))
    place = "outside lower center"
    figure.legend(handles=parts, loc=place, ncols=7, fontsize=SMALL, frameon=False)


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
WIDE = 100  # columns where nobody says
MOST_BARS = 20  # devices
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
    pieces = step.pieces[:MOST_BARS]
    others = [
        [piece.device_id, seconds(piece.work_s), piece.peak_phase or "-", piece.mark]
        for piece in pieces
    ]
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
    room = max(16, width - taken - len(GAP) * len(columns))
    cell_s = max(piece.work_s for piece in pieces) / max(1, room - WAITING - 1)
    scale = seconds(cell_s) if cell_s >= 0.01 else f"{1e3 * cell_s:.1f} ms"
    bars = Column(f"waited{GIVEN}working, {scale} a letter", "word")
    columns[1:1] = [bars]
    rows = [
        [first, _bar(piece, cell_s, room), *rest]
        for piece, (first, *rest) in zip(pieces, others, strict=True)
    ]
    return Table(
        columns,
        rows,
        f"{step.title}: devices, the slowest first (measured by the devices)",
        tuple(_notes(step, is_last)),
    )


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
        yield f"straggler: {_behind_text(straggler)}"
    peak = step.peak
    where = f"in {peak.peak_phase}" if peak.peak_phase else "held before this work began"
    if not peak.is_peak_of_work:
        where = "of its process's life so far: its kernel lets no peak begin with a piece of work"
    yield f"memory peak: {sizes([peak.peak_rss_bytes])[0]} on {peak.device_id}, {where}"
    if len(step.pieces) > MOST_BARS:
        yield f"and {len(step.pieces) - MOST_BARS} more devices; see --json"
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


def _behind_text(found: Straggler) -> str:
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
