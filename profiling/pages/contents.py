"""What stands on the page, in order: answers, charts, tables, conditions; HTML and Markdown of it
are made from this alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edge_client.tables import plain, size
from profiling.estimates.rates import Rates
from profiling.models.cell import METHODS, Cell
from profiling.pages.answers import (
    SMALLEST_FIRST,
    Answer,
    Setting,
    answer,
    bases,
    grid,
    largest,
    latest,
    setting,
    settings,
)
from profiling.pages.charts import Chart, label_chart, memory_chart, step_chart
from profiling.pages.conditions import told
from profiling.pages.elsewhere import elsewhere
from profiling.pages.sheets import Sheet, all_bases, all_cells, beside_the_paper
from profiling.pages.words import (
    METHOD_NAMES,
    METHODS_TOLD,
    UNSTABLE,
    base_name,
    board_name,
    count,
    family,
    is_done,
    method_name,
    step,
)
from profiling.records.record import Conditions

INSTRUMENTS = (
    ("peak memory", "VmHWM: the kernel's own peak of resident memory over the life of the process, "
     "libraries and opening the base included"),
    ("anonymous", "highest RssAnon, read from outside every 10 ms; a shorter spike is not seen"),
    ("step", "wall-clock seconds of one optimizer step, warm-up apart: the median, and the "
     "smallest and largest"),
    ("texts labelled per second", "wall clock over texts that the model gives labels to, in a "
     "process of its own, whose peak is VmHWM too"),
    ("sent per round", "the trained parameters in float32, as a formula: what a device sends in a "
     "round before encodings and HTTP"),
    ("smallest board", "found from the peak without a limit, then proved: one run inside a hard "
     "memory group of the board's memory, swap included, on two cores, page cache dropped before, "
     "comes to its end; one inside the next smaller, where there is a smaller one, is killed or "
     "refused; 1 GiB is the smallest tried"),
    *((METHOD_NAMES[name], text) for name, text in METHODS_TOLD.items()),
    ("each cell", "a fresh process, one after the other; random weights of the base's real shape, "
     "which cost what trained ones cost"),
)  # fmt: skip
WITHOUT = {"unmeasured": "not measured", "none": "does not fit", "unproved": "not proved"}


@dataclass(frozen=True)
class GridCell:
    """A base on a board: seconds and what takes them, or why there are none; others beside it."""

    value: str
    method: str
    css: str
    other: str = ""


@dataclass(frozen=True)
class GridRow:
    """A base on all boards."""

    name: str
    parameters: str
    cells: Sequence[GridCell]


@dataclass(frozen=True)
class BasePart:
    """A base's charts.

    Attributes:
        number: From 1, for names of elements.
        facts: Parameters, what is trained, what a round sends.
        reasons: Why methods have no figures.
    """

    number: int
    name: str
    facts: str
    charts: Sequence[Chart]
    reasons: Sequence[str]


@dataclass(frozen=True)
class Block:
    """All cells of one setting.

    Attributes:
        heading: What goes behind headings where there are several settings.
        setting: Batch, tokens, instruction sets in a sentence.
    """

    heading: str
    setting: str
    answers: Sequence[GridRow]
    notes: Sequence[str]
    bases: Sequence[BasePart]
    is_unstable: bool
    is_cut: bool


@dataclass(frozen=True)
class Contents:
    """The whole page."""

    lead: Sequence[str]
    boards: Sequence[str]
    blocks: Sequence[Block]
    tables: Sequence[Sheet]
    conditions: Sequence[tuple[str, str]]
    instruments: Sequence[tuple[str, str]] = INSTRUMENTS


def contents(
    cells: Sequence[Cell],
    conditions: Sequence[Conditions],
    rates: Rates | None,
    left_out: int = 0,
) -> Contents:
    """Everything the page says.

    Args:
        cells: In any order; of one that was measured twice the last counts.
        conditions: Of every record the cells are from.
        rates: This machine's, measured; without them nothing is estimated.
        left_out: How many records of other machines are not among them.
    """
    cells = ordered(latest(cells))
    every = settings(cells)
    blocks = [
        _block([cell for cell in cells if setting(cell) == one], one, len(every) > 1)
        for one in every
    ]
    first = [cell for cell in cells if setting(cell) == every[0]] if every else []
    estimated = None if rates is None else elsewhere(first, rates)
    sheets = (all_bases(cells), beside_the_paper(first), estimated, all_cells(cells))
    return Contents(
        lead=_lead(cells),
        boards=[board_name(board) for board in SMALLEST_FIRST],
        blocks=blocks,
        tables=[sheet for sheet in sheets if sheet is not None],
        conditions=told(conditions, left_out),
    )


def ordered(cells: Sequence[Cell]) -> list[Cell]:
    """By base, the smallest first; then others' recipes before our engines, budgets falling."""
    order = {base: number for number, base in enumerate(bases(cells))}
    methods = {method: number for number, method in enumerate(METHODS)}
    return sorted(cells, key=lambda one: (order[one.base], methods.get(one.method, len(METHODS))))


def _lead(cells: Sequence[Cell]) -> list[str]:
    """The answer in a sentence or two."""
    measured = [cell for cell in cells if is_done(cell)]
    if not measured:
        return ["Nothing has been measured to its end yet."]
    rows = grid([cell for cell in cells if setting(cell) == settings(cells)[0]])
    found = {board: largest(rows, board) for board in SMALLEST_FIRST}
    board = next((board for board in SMALLEST_FIRST if found[board] is not None), None)
    if board is None:
        return ["No run inside a board's memory has been made yet: what fits is not proved."]
    best = found[board]
    assert best is not None and best.cell is not None
    first = (
        f"The largest base that trains inside {board_name(board)} is "
        f"{base_name(best.cell)} ({count(best.cell.parameters)} parameters); "
        f"{METHOD_NAMES[best.cell.method]} takes {step(best.cell)} per step on this machine, "
        f"with a peak of {size(best.cell.peak_rss_bytes)}."
    )
    return [first + _least(cells, best.cell), *_beside(cells, best.cell)]


def _least(cells: Sequence[Cell], best: Cell) -> str:
    """How little memory the same base trains in, where that is less."""
    own = [
        cell
        for cell in cells
        if cell.base == best.base
        and setting(cell) == setting(best)
        and is_done(cell)
        and cell.peak_rss_bytes
    ]
    least = min(own, key=lambda cell: cell.peak_rss_bytes or 0)
    if least == best:
        return ""
    return (
        f" {method_name(least)} trains it in {size(least.peak_rss_bytes)}, {step(least)} per step."
    )


def _beside(cells: Sequence[Cell], best: Cell) -> list[str]:
    others = [
        f"{METHOD_NAMES[cell.method]} takes {size(cell.peak_rss_bytes)}"
        for cell in cells
        if cell.base == best.base
        and setting(cell) == setting(best)
        and is_done(cell)
        and family(cell) == "peer"
        and cell.peak_rss_bytes
    ]
    return [f"On the same base {', '.join(others)}."] if others and family(best) != "peer" else []


def _block(cells: Sequence[Cell], one: Setting, is_named: bool) -> Block:
    held = f"libraries held to {plain(one.isa)}" if one.isa else "all instruction sets"
    if one.threads is not None:
        held += f", threads: {one.threads}"
    parts = [
        BasePart(
            number,
            base_name(own[0]),
            _facts(own),
            [memory_chart(own, cells), step_chart(own), label_chart(own)],
            [f"{method_name(cell)}: {plain(cell.outcome)}" for cell in own if not is_done(cell)],
        )
        for number, base in enumerate(bases(cells), start=1)
        if (own := [cell for cell in cells if cell.base == base])
    ]
    marks = [row.mark for part in parts for chart in part.charts for row in chart.rows]
    return Block(
        heading=f", {held}, {one.batch} x {one.tokens} tokens" if is_named else "",
        setting=f"A step is {one.batch} texts of {one.tokens} tokens; {held}.",
        answers=[_grid_row(row, cells) for row in grid(cells)],
        notes=_notes(any(cell.is_unstable for cell in cells)),
        bases=parts,
        is_unstable=any(cell.is_unstable for cell in cells),
        is_cut=any(mark is not None and (mark.is_cut or mark.is_over) for mark in marks),
    )


def _grid_row(row: Sequence[Answer], every: Sequence[Cell]) -> GridRow:
    peers = [cell for cell in every if family(cell) == "peer"]
    cells = [_grid_cell(one, answer(peers, one.base, one.board_bytes)) for one in row]
    known = [one.cell for one in row if one.cell is not None]
    parameters = count(known[0].parameters) if known else ""
    return GridRow(plain(row[0].base.rstrip("/").rsplit("/", 1)[-1]), parameters, cells)


def _grid_cell(one: Answer, peer: Answer) -> GridCell:
    """The fastest, and the fastest of others' recipes where it is not one of them."""
    if one.cell is None:
        return GridCell("", WITHOUT[one.why], "none")
    name = f"{_brief(one.cell)} {size(one.cell.peak_rss_bytes)}"
    other = ""
    if family(one.cell) != "peer" and peer.why != "unmeasured":
        other = f"others: {'not proved' if peer.why == 'unproved' else 'none'}"
        if peer.cell is not None:
            open_ = "" if peer.why == "proved" else ", not proved"
            other = f"{_brief(peer.cell)} {_seconds(peer.cell)}{open_}"
    if one.why == "unproved":
        return GridCell(_seconds(one.cell), f"{name}, not proved", "unproved", other)
    return GridCell(_seconds(one.cell), name, family(one.cell), other)


def _brief(cell: Cell) -> str:
    name = {"full": "full", "peft": "PEFT", "nf4": "nf4"}
    return name.get(cell.method, plain(cell.method))


def _seconds(cell: Cell) -> str:
    """Without the unit, which stands above the table."""
    return step(cell).replace(" s", "")


def _notes(is_unstable: bool) -> list[str]:
    notes = [
        "In each field: median seconds of a step, and by what, with its peak memory; below it the "
        "fastest of the others' recipes that fits too.",
        "What is proved is memory: a run inside a hard limit of that size came to its end. The "
        "seconds are this machine's, without a limit; a board's processor takes longer.",
    ]
    told = f"{UNSTABLE} unstable: repetitions spread by more than 15 % (interquartile range)."
    return [*notes, told] if is_unstable else notes


def _facts(cells: Sequence[Cell]) -> str:
    """Parameters, and what is trained and sent, of whole bases and of adapters."""
    parts = []
    known = next((cell.parameters for cell in cells if cell.parameters), None)
    if known:
        parts.append(f"{count(known)} parameters")
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.trained_parameters and cell.adapter not in seen:
            seen[cell.adapter] = cell
    for name, cell in seen.items():
        sent = f", {size(cell.round_bytes)} sent per round" if cell.round_bytes else ""
        parts.append(f"{plain(name)}: {count(cell.trained_parameters)} trained{sent}")
    return " · ".join(parts)
