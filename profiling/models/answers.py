"""Which base fits which board: the answer that the table is made for, from its cells alone.

A cell counts for a board only if a run inside a hard memory group of that size, or of a smaller
board's, came to its end. Among those that count the one with the fewest seconds a step is named.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

from profiling.models.cell import BOARDS, METHODS, Cell

SMALLEST_FIRST = tuple(sorted(BOARDS))
Why = Literal["proved", "unproved", "none", "unmeasured"]


class Setting(NamedTuple):
    """What must agree for cells to stand beside each other; as `Cell` has it."""

    isa: str
    batch: int
    tokens: int
    threads: int | None


class Answer(NamedTuple):
    """What trains a base on a board.

    Attributes:
        base: The base.
        board_bytes: The board's memory.
        why: `proved`; `unproved` where only the uncapped peak says so, or nothing does; `none`
            where nothing that was measured fits; `unmeasured` where nothing came to its end.
        cell: The fastest that fits; None where nothing is known to.
    """

    base: str
    board_bytes: int
    why: Why
    cell: Cell | None = None


def setting(cell: Cell) -> Setting:
    return Setting(cell.isa, cell.batch, cell.tokens, cell.threads)


def settings(cells: Iterable[Cell]) -> list[Setting]:
    """Each once: all that the processor has before what it was held to, the most cells first."""
    found = Counter(map(setting, cells))
    return sorted(found, key=lambda one: (one.isa, one.threads is not None, -found[one]))


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """By setting, base (the smallest first) and method; of what was measured twice the last."""
    latest = {tuple(cell.subject.items()): cell for cell in cells}.values()
    sizes: dict[str, int] = {}
    for cell in latest:
        sizes[cell.base] = max(sizes.get(cell.base, 0), cell.parameters or 0)
    places = {one: place for place, one in enumerate(settings(latest))}
    ways = [*METHODS, *(cell.method for cell in latest)]

    def key(cell: Cell) -> tuple[int, bool, int, str, int]:
        size = sizes[cell.base]
        return places[setting(cell)], not size, size, cell.base, ways.index(cell.method)

    return sorted(latest, key=key)


def answer(cells: Sequence[Cell], base: str, board_bytes: int) -> Answer:
    """The fastest that fits, of the proved ones if there are any."""
    done = [cell for cell in cells if cell.base == base and cell.is_done and cell.steps_s]
    fitting = [cell for cell in done if cell.board_bytes and cell.board_bytes <= board_bytes]
    proved = [cell for cell in fitting if cell.is_proved]
    if fitting:
        best = min(proved or fitting, key=lambda cell: median(cell.steps_s))
        return Answer(base, board_bytes, "proved" if proved else "unproved", best)
    is_known = all(cell.is_proved or cell.fits_none for cell in done)
    return Answer(
        base, board_bytes, "unmeasured" if not done else "none" if is_known else "unproved"
    )


def grid(cells: Sequence[Cell]) -> list[list[Answer]]:
    """One row per base in the order of the cells, one answer per board, the smallest first."""
    bases = dict.fromkeys(cell.base for cell in cells)
    return [[answer(cells, base, board) for board in SMALLEST_FIRST] for base in bases]


def largest(cells: Sequence[Cell]) -> Answer | None:
    """On the smallest board that anything is proved to fit, the largest base that is."""
    proved = [one for row in grid(cells) for one in row if one.why == "proved"]
    return min(proved, key=lambda one: (one.board_bytes, -_parameters(one)), default=None)


def _parameters(one: Answer) -> int:
    return (one.cell and one.cell.parameters) or 0
