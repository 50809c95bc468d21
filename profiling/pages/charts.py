"""Charts as numbers: where marks, axes and words stand; `models.html.j2` draws them as SVG.

A chart is 344 units wide, a phone's column: it is shown at its own size everywhere, so that words
in it are never smaller than words around it, and a wide screen has three of them beside each other.
Memory stands on an axis that doubles, since boards do; on such an axis a bar's length means
nothing, so it has dots. Seconds and texts are bars from zero.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from edge_client.tables import size
from profiling.models.cell import BOARDS, GIB, Cell
from profiling.pages.words import (
    UNSTABLE,
    board_name,
    ended,
    family,
    is_done,
    is_trained,
    rate,
    short_name,
    step,
    whole,
)

WIDTH = 344.0
LEFT, RIGHT = 104.0, 272.0  # the plot; names stand left of it, figures right
TOP, ROW, GAP, BOTTOM = 26.0, 22.0, 8.0, 6.0
ROOM = 1.12  # of the plot behind the longest bar, for its spread
FAR = 3.0  # a bar so many times the next longest is cut, so that others can be seen
LEAST_BYTES = GIB // 8  # where the axis of memory begins at the latest


@dataclass(frozen=True)
class Tick:
    """A line across the plot, with a word above it; empty: none."""

    x: float
    label: str = ""
    is_board: bool = False
    anchor: str = "middle"


@dataclass(frozen=True)
class Mark:
    """What a row shows.

    Attributes:
        x: Where the bar ends or the dot stands.
        low: Where the least repetition stands, or the second dot; None: not shown.
        high: Where the greatest stands.
        is_cut: Whether the bar goes on beyond the plot.
        is_over: Whether the greatest repetition lies beyond it.
    """

    x: float
    low: float | None = None
    high: float | None = None
    is_cut: bool = False
    is_over: bool = False


@dataclass(frozen=True)
class Row:
    """A method.

    Attributes:
        y: Its middle.
        name: Left of the plot.
        value: Right of it: the figure, or how it ended without one.
        family: What it is coloured by.
        told: All of it in a sentence.
        mark: None where there is no figure.
        is_unstable: Whether its repetitions spread.
    """

    y: float
    name: str
    value: str
    family: str
    told: str
    mark: Mark | None = None
    is_unstable: bool = False


@dataclass(frozen=True)
class Chart:
    """One measure of all methods of a base.

    Attributes:
        kind: `dots` or `bars`.
        title: What is shown, with its unit.
        description: The same for those who cannot see it, figures included.
    """

    kind: str
    title: str
    description: str
    height: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...] = field(repr=False)


def memory_chart(cells: Sequence[Cell], every: Sequence[Cell]) -> Chart:
    """Peak memory of training, and of labelling beside it, against the boards' own.

    Args:
        cells: A base's.
        every: All that stand beside them: all bases have one axis.
    """
    known = [
        value
        for cell in every
        for value in (cell.peak_rss_bytes, cell.label_peak_rss_bytes)
        if value
    ]
    low = math.floor(math.log2(min([*known, LEAST_BYTES])) * 2) / 2
    high = math.ceil(math.log2(max([*known, max(BOARDS)])) * 2 + 0.5) / 2

    def place(value: float) -> float:
        return _between((math.log2(value) - low) / (high - low))

    def mark(cell: Cell) -> Mark | None:
        if not cell.peak_rss_bytes or not is_trained(cell):
            return None
        label = cell.label_peak_rss_bytes if is_done(cell) else None
        return Mark(place(cell.peak_rss_bytes), low=place(label) if label else None)

    boards = sorted(BOARDS)
    ticks = [Tick(place(board), f"{board / GIB:g}", True) for board in boards]
    ticks[-1] = Tick(ticks[-1].x, board_name(boards[-1]), True, "start")
    quarter = GIB // 4
    if math.log2(quarter) > low:
        ticks.insert(0, Tick(place(quarter), "256 MiB"))
    return _chart("dots", "Peak memory", cells, ticks, mark, lambda one: size(one.peak_rss_bytes))


def step_chart(cells: Sequence[Cell]) -> Chart:
    """Median seconds of a step, from the least to the greatest; what spreads is marked."""
    return _bars(
        "Seconds per step", cells, lambda one: one.steps_s if is_trained(one) else (), step
    )


def label_chart(cells: Sequence[Cell]) -> Chart:
    """Texts labelled a second."""
    return _bars(
        "Texts labelled per second",
        cells,
        lambda one: one.texts_per_s if is_done(one) else (),
        lambda one: rate(one.texts_per_s),
    )


def _bars(
    title: str,
    cells: Sequence[Cell],
    values: Callable[[Cell], Sequence[float]],
    said: Callable[[Cell], str],
) -> Chart:
    middles = [median(values(cell)) for cell in cells if values(cell)]
    end = _reach(middles) * ROOM
    steps = round_steps(end)

    def place(value: float) -> float:
        return _between(min(value, end) / end)

    def mark(cell: Cell) -> Mark | None:
        found = values(cell)
        if not found:
            return None
        middle = median(found)
        if middle > end:
            return Mark(RIGHT, is_cut=True)
        if len(found) < 2:
            return Mark(place(middle))
        is_over = max(found) > end
        return Mark(place(middle), place(min(found)), place(max(found)), is_over=is_over)

    ticks = [Tick(place(step), f"{step:g}") for step in steps]
    return _chart("bars", title, cells, ticks, mark, said)


def _chart(
    kind: str,
    title: str,
    cells: Sequence[Cell],
    ticks: Sequence[Tick],
    mark: Callable[[Cell], Mark | None],
    said: Callable[[Cell], str],
) -> Chart:
    rows, y, before = [], TOP, ""
    for cell in cells:
        own = family(cell)
        y += GAP if before not in ("", own) else 0.0
        before, found = own, mark(cell)
        value = "-" if is_done(cell) else ended(cell)
        if found is not None:
            value = said(cell)
        name = short_name(cell)
        rows.append(Row(y + ROW / 2, name, value, own, whole(cell), found, UNSTABLE in value))
        y += ROW
    told = "; ".join(f"{row.name}: {row.value}" for row in rows)
    return Chart(kind, title, f"{title}. {told}.", y + BOTTOM, tuple(ticks), tuple(rows))


def _reach(values: Sequence[float]) -> float:
    """How far an axis goes: to the greatest, unless it would leave the others too small."""
    ordered = sorted(values) or [1.0]
    while len(ordered) > 2 and ordered[-1] > FAR * ordered[-2]:
        ordered.pop()
    return ordered[-1] or 1.0


def round_steps(reach: float) -> list[float]:
    """Three to five round numbers from 0, the last no more than `reach`."""
    raw = reach / 4
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    return [round(step * number, 9) for number in range(int(reach / step + 1e-9) + 1)]


def _between(share: float) -> float:
    return round(LEFT + max(0.0, min(1.0, share)) * (RIGHT - LEFT), 2)
