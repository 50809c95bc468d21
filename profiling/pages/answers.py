"""Which base fits which board: the answer that the table is made for, from its cells alone.

A cell counts for a board only if a run inside a hard memory group of that size, or of a smaller
board's, came to its end. Among those that count the one with the fewest seconds a step is named.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from profiling.models.cell import BOARDS, Cell
from profiling.pages.words import is_done, middle

SMALLEST_FIRST = tuple(sorted(BOARDS))
Why = Literal["proved", "unproved", "none", "unmeasured"]


@dataclass(frozen=True)
class Setting:
    """What must agree for cells to stand beside each other.

    Attributes:
        isa: What the libraries were held to; empty for all that the processor has.
        batch: Texts in a step.
        tokens: Tokens of a text.
        threads: Threads of every process; None for what its libraries take.
    """

    isa: str
    batch: int
    tokens: int
    threads: int | None = None


@dataclass(frozen=True)
class Answer:
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
    return sorted(
        found, key=lambda one: (one.isa != "", one.threads is not None, -found[one], one.isa)
    )


def bases(cells: Iterable[Cell]) -> list[str]:
    """Bases by parameters, the smallest first; unknown ones last."""
    sizes: dict[str, int] = {}
    for cell in cells:
        sizes[cell.base] = max(sizes.get(cell.base, 0), cell.parameters or 0)
    return sorted(sizes, key=lambda base: (not sizes[base], sizes[base], base))


def latest(cells: Iterable[Cell]) -> list[Cell]:
    """Of what was measured twice the last, where the first stood."""
    found: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        found[tuple(cell.subject.items())] = cell
    return list(found.values())


def answer(cells: Sequence[Cell], base: str, board_bytes: int) -> Answer:
    """The fastest that fits, of the proved ones if there are any."""
    own = [cell for cell in cells if cell.base == base]
    fitting = [
        cell
        for cell in own
        if is_done(cell) and cell.board_bytes is not None and cell.board_bytes <= board_bytes
    ]
    proved = [cell for cell in fitting if cell.is_proved]
    if not fitting:
        return Answer(base, board_bytes, _why_none([cell for cell in own if is_done(cell)]))
    best = min(proved or fitting, key=lambda cell: middle(cell.steps_s) or 0.0)
    return Answer(base, board_bytes, "proved" if proved else "unproved", best)


def _why_none(done: Sequence[Cell]) -> Why:
    """Why none of the cells that came to their end fits."""
    if not done:
        return "unmeasured"
    return "none" if all(cell.is_proved or cell.fits_none for cell in done) else "unproved"


def grid(cells: Sequence[Cell]) -> list[list[Answer]]:
    """One row per base, one answer per board, both smallest first."""
    return [[answer(cells, base, board) for board in SMALLEST_FIRST] for base in bases(cells)]


def largest(rows: Sequence[Sequence[Answer]], board_bytes: int) -> Answer | None:
    """The largest base that is proved to fit a board."""
    found = [
        one
        for row in rows
        for one in row
        if one.board_bytes == board_bytes and one.why == "proved" and one.cell is not None
    ]
    return max(found, key=lambda one: (one.cell and one.cell.parameters) or 0, default=None)
