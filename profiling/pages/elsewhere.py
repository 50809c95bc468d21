"""Seconds of a step on boards that are not here: estimated, in columns of their own."""

from collections.abc import Sequence
from statistics import median

import msgspec

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.architectures import ArchitectureError, Shape
from edge_client.bases.base import open_base
from edge_client.bases.layout import checked_shape
from edge_client.bases.random_models import CONFIGS, hub_config
from edge_client.errors import WrongInput
from edge_client.planning.plan import Plan, Workload
from edge_client.tables import seconds
from profiling.estimates.boards import BOARDS
from profiling.estimates.rates import FILE as RATES
from profiling.estimates.rates import Rates
from profiling.estimates.roofline import FORMULA, REACHED, StepWork, estimate, reached, step_work
from profiling.models.cell import Cell
from profiling.pages.answers import answer, bases
from profiling.pages.sheets import Entry, Head, Sheet
from profiling.pages.words import base_name, method_name, step

RANDOM_BITS = 4  # of a shape's random weights
SHOWN = [BOARDS[name] for name in ("nano", "tx2", "xavier-nx", "orin-nano")]  # of equal ones one


def elsewhere(cells: Sequence[Cell], rates: Rates) -> Sheet | None:
    """Every base's step on every board by the fastest of our float32 steps that fits them all.

    Args:
        cells: Measured here, of one setting; a step says what share of this machine's roof it
            reaches.
        rates: This machine's, measured.
    """
    least = min(board.memory_bytes for board in SHOWN)
    rows, faster = [], []
    for base in bases(cells):
        own = [cell for cell in cells if cell.plan and cell.dtype == "float32" and _is_whole(cell)]
        best = answer(own, base, least).cell
        work = work_of(best) if best is not None else None
        if best is None or work is None:
            continue
        share = reached(work, median(best.steps_s), rates)
        if share > 1:
            faster.append(base_name(best))
            continue
        found = [estimate(work, board, share).step_s for board in SHOWN]
        rows.append(
            [
                Entry(base_name(best), "word"),
                Entry(method_name(best), "word"),
                Entry(step(best), "group", median(best.steps_s)),
                Entry(f"{100 * share:.0f} %"),
                Entry(seconds(found[0]), "group", found[0]),
                *(Entry(seconds(value), "", value) for value in found[1:]),
            ]
        )
    if not rows and not faster:
        return None
    boards = [board.name.removeprefix("Jetson ") for board in SHOWN]
    sources = sorted({source for board in SHOWN for source in board.sources})
    return Sheet(
        "Boards that are not here",
        [
            Head("base", "word"),
            Head("by", "word"),
            Head("step", "group"),
            Head("share of the roof"),
            Head(boards[0], "group"),
            *map(Head, boards[1:]),
        ],
        rows,
        prose=[
            "No step was run on these boards. Their seconds are estimated: "
            f"{FORMULA}. Products and weights of a step are computed from the base's shape and the "
            f"plan; this machine's product rate, {rates.flops_per_s / 1e9:.0f} G/s, and its "
            f"memory's, {rates.bytes_per_s / 1e9:.1f} GB/s, are measured; a board's are "
            f"{100 * REACHED:.0f} % of its peaks, which is assumed; the peaks are by the sources "
            "below. Processors alone compute; heat and swapping are not in it."
        ],
        notes=[f"Sources: {'; '.join(sources)}.", *_left_out(faster)],
        kinds=[("", 2), ("measured here", 2), ("estimated, seconds per step", len(boards))],
    )


def _left_out(names: Sequence[str]) -> list[str]:
    """Bases whose step was faster than the roof, so that the roof is wrong."""
    if not names:
        return []
    return [
        f"Left out: {', '.join(names)}. Their steps were faster than this machine's rates allow: "
        f"others were at work while the rates were measured. Remove {RATES} and measure again."
    ]


def work_of(cell: Cell) -> StepWork | None:
    """What a cell's step computes and moves; None where its base or its plan is not known."""
    try:
        shape, bits = _shape(cell.base)
        adapter = parse_adapter(cell.adapter)
        work = Workload(shape, bits, adapter, cell.batch, cell.tokens, engine=cell.method)
        return step_work(work, msgspec.convert(cell.plan, Plan))
    except (ArchitectureError, WrongInput, msgspec.ValidationError):
        return None


def _is_whole(cell: Cell) -> bool:
    """Whether it had all of the machine, whose rates are of all its cores."""
    return not cell.isa and cell.threads is None


def _shape(base: str) -> tuple[Shape, int]:
    if base in CONFIGS:
        return checked_shape(hub_config(base)), RANDOM_BITS
    opened = open_base(base)
    return opened.shape, opened.bits
