"""What there is of an entry on disk: each cell's results with each seed, or why there are none."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from edge_client.errors import Failed, Stopped, WrongInput
from simulation.experiments.result import Result
from simulation.experiments.stage import Stage, stage
from simulation.papers.index.entry import Entry, Given
from simulation.papers.report import Piece
from simulation.papers.scenario import Cell, Measured, Scenario


@dataclass(frozen=True)
class Slot:
    """A cell and what there is of it.

    Attributes:
        cell: The cell.
        stages: One per seed; none where they cannot be had.
        results: One per seed, None where that has not been run to its end.
        trouble: Why it cannot be run; empty where nothing is known against it.
    """

    cell: Cell
    stages: tuple[Stage, ...]
    results: tuple[Result | None, ...]
    trouble: str = ""

    @property
    def is_whole(self) -> bool:
        return all(self.results)

    @property
    def found(self) -> Measured | None:
        """Of the seeds that there are; None where there is none."""
        there = tuple(result for result in self.results if result is not None)
        return Measured(self.cell, there) if there else None


@dataclass(frozen=True)
class EntryState:
    """An entry and what there is of it.

    Attributes:
        entry: The entry.
        piece: Its scenario; None where that cannot be put together.
        cells: Its cells.
        trouble: Why it cannot be put together.
    """

    entry: Entry
    piece: Piece | None = None
    cells: tuple[Slot, ...] = field(default=())
    trouble: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether every cell has a result with every seed."""
        return self.piece is not None and all(slot.is_whole for slot in self.cells)

    @property
    def has_some(self) -> bool:
        return any(slot.found for slot in self.cells)

    @property
    def left(self) -> dict[str, Stage]:
        """Experiments that have not been run, by their keys."""
        return {
            on.key: on
            for slot in self.cells
            for on, result in zip(slot.stages, slot.results, strict=False)
            if result is None
        }

    def with_troubles(self, troubles: Sequence[str]) -> "EntryState":
        """The same where cells that have no result say why, by their place."""
        pairs = zip(self.cells, troubles, strict=True)
        told = [
            slot if slot.is_whole or not why else replace(slot, trouble=why) for slot, why in pairs
        ]
        return replace(self, cells=tuple(told))


def look(entry: Entry, given: Given) -> EntryState:
    """Read what there is of an entry; nothing is run."""
    try:
        piece = entry.make(given)
    except Stopped:
        raise
    except (WrongInput, Failed) as error:
        return EntryState(entry, trouble=str(error))
    scenario = replace(piece.scenario, name=entry.name)
    alone = [replace(scenario, cells=(cell,)) for cell in scenario.cells]
    cells = tuple(_slot(one, given) for one in alone)
    return EntryState(entry, replace(piece, scenario=scenario), cells)


def _slot(scenario: Scenario, given: Given) -> Slot:
    """The one cell of a scenario."""
    (cell,), place = scenario.cells, given.order.place
    asked = scenario.experiments(given.order.seeds)
    try:
        stages = tuple(stage(one, place.data) for one in asked)
        results = tuple(given.kept.result(on, place) for on in stages)
    except (WrongInput, OSError) as error:
        return Slot(cell, (), (None,) * len(asked), str(error))
    return Slot(cell, stages, results)
