"""Entries of the papers' index: published tables and figures, and the scenarios that replay them.

The four papers' files list them in the papers' order (`listed`), except drawings of methods and
tables of settings, which are in the notes. When a list is played, entries that cannot run are
reported and skipped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from benchmarks.papers.grid import Doc, Names, filled, read_file
from benchmarks.papers.index.kept import NOTHING, Kept
from benchmarks.papers.pieces import AUG, FILES, piece_of
from benchmarks.papers.tables.traffic import traffic_table
from smidgen.edge_client.errors import Failed, Stopped, WrongInput, demand
from smidgen.edge_client.tables import Table
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import Result
from smidgen.simulation.experiments.runner import Tell, run_all
from smidgen.simulation.experiments.stage import Stage, stage
from smidgen.simulation.report.report import Order, Piece, written
from smidgen.simulation.report.scenario import Cell, Figure, Measured, Scenario

MIXTURE = "MIXTURE"  # in a command; of which `Given.mixture` takes the place


@dataclass(frozen=True)
class Given:
    """What entries are played with.

    Attributes:
        base: Of English texts.
        multilingual: Base of texts in several languages.
        bases: What is compared where bases are.
        mixture: Languages that `multilingual` was pretrained on -> their share.
        quick: One seed, less of everything.
        order: How they are played.
        kept: Results of other machines and earlier days.
    """

    base: str
    multilingual: str
    bases: tuple[str, ...]
    mixture: Mapping[str, float]
    quick: bool
    order: Order
    kept: Kept = NOTHING


@dataclass(frozen=True)
class Entry:
    """One scenario.

    Attributes:
        name: `PAPER/SCENARIO`, or `PAPER/SCENARIO/DATASET`.
        make: Puts it together.
    """

    name: str
    make: Callable[[Given], Piece]

    @property
    def last(self) -> str:
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Printed:
    """A table or figure as a paper prints it.

    Attributes:
        paper: The paper's name.
        title: Such as `Table 2: few labels`.
        entries: What plays it; none where nothing is run.
        counted: Its table where that is counted, not run.
        told: What has to be said: what cannot be had, or where else it is.
        page: Page of `docs/results` that says more, or empty.
        command: What shows it where nothing of it is run here.
        bases: Options of the command that name its bases.
        tables: The paper's, shown while an entry's own, which stand beside them, are not there.
        figures: The same of what the paper prints in a sentence or a drawing.
    """

    paper: str
    title: str
    entries: tuple[Entry, ...] = ()
    counted: Table | None = None
    told: Sequence[str] = ()
    page: str = ""
    command: str = ""
    bases: str = "--base BASE"
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@cache
def printed() -> tuple[Printed, ...]:
    listed = {name: read_file(name)[0].get("listed", {}) for name in FILES}
    return tuple(_printed(name, one) for name in FILES for one in listed[name].get("printed", ()))


def _printed(paper: str, one: Doc) -> Printed:
    doc, known = read_file(paper)
    counted = one.get("counted")
    entries = [
        Entry(f"{paper}/{one['scenario']}" + (f"/{of}" if "sets" in one else ""), make)
        for of in (one.get("sets") or [one.get("set", "")] if "scenario" in one else ())
        for make in [partial(_piece, paper, one["scenario"], of)]
    ]
    return Printed(
        known.name,
        one["title"],
        tuple(entries),
        traffic_table()[0]
        if counted == "traffic"
        else known.tables[counted].shown()
        if counted
        else None,
        filled(one.get("told", []), Names(known.figures)),
        one.get("page", ""),
        one.get("command", ""),
        one.get("bases", doc["listed"]["base"]),
        tuple(known.tables[name].shown() for name in one.get("tables", ())),
        tuple(known.figures[name] for name in one.get("figures", ())),
    )


def _piece(paper: str, name: str, dataset: str, given: Given) -> Piece:
    listed = read_file(paper)[0]["listed"]
    asked: dict[str, Any] = {"base": given.multilingual, **listed.get("given", {})}
    if paper == AUG:
        asked |= {"base": given.base, "bases": given.bases, "dataset": dataset}
    words = {"quick" if given.quick else "listed", dataset}
    found = piece_of(paper, name, given.order.place, words, pretraining=given.mixture, **asked)
    rounds = 0 if given.quick else listed.get("rounds", 0)
    return replace(found, scenario=found.scenario.lasting(rounds))


def chosen(every: Sequence[Printed], only: Sequence[str]) -> list[Entry]:
    """Entries by their names, or by the beginnings of these up to a slash; all, if none is named.

    Raises:
        WrongInput: Nothing is called so.
    """
    entries = [entry for one in every for entry in one.entries]
    known = ", ".join(entry.name for entry in entries)
    for name in only:
        is_there = any(_is_of(entry, name) for entry in entries)
        demand(
            is_there, f"--only {name!r}: a name, or its part before a slash, is expected: {known}"
        )
    return [entry for entry in entries if not only or any(_is_of(entry, name) for name in only)]


def _is_of(entry: Entry, name: str) -> bool:
    return f"{entry.name}/".startswith(f"{name.rstrip('/')}/")


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
        return self.piece is not None and all(slot.is_whole for slot in self.cells)

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
    (cell,), place = scenario.cells, given.order.place
    asked = scenario.experiments(given.order.seeds)
    try:
        stages = tuple(stage(one, place.data) for one in asked)
        results = tuple(given.kept.result(on, place) for on in stages)
    except (WrongInput, OSError) as error:
        return Slot(cell, (), (None,) * len(asked), str(error))
    return Slot(cell, stages, results)


Say = Callable[[Entry, int, int], None]
"""Told the entry at hand, its rounds done and in all."""


def looked(entries: Sequence[Entry], given: Given) -> list[EntryState]:
    """What there is of entries; nothing is run."""
    return [look(entry, given) for entry in entries]


def play_all(
    states: list[EntryState], given: Given, say: Say, kept: Callable[[EntryState], None]
) -> None:
    """Play entries in turn; each is put back into its place as soon as it is played.

    Args:
        states: What there is of them; changed in place.
        given: What they are played with.
        say: Told how far it is.
        kept: Told each entry that has been played.
    """
    for place, state in enumerate(list(states)):
        states[place] = _played(state, given, partial(_tell, say, state.entry))
        kept(states[place])


def _tell(say: Say, entry: Entry, done: int, total: int, _: str) -> None:
    say(entry, done, total)


def _played(before: EntryState, given: Given, tell: Tell) -> EntryState:
    """Run an entry's cells; of those that cannot be run it says why."""
    entry, start_s = before.entry, time.monotonic()
    if before.piece is None:  # what was missing may be there by now
        before = look(entry, given)
    able = [slot for slot in before.cells if not slot.trouble]
    told: dict[Experiment, str] = {}
    after = before
    if not all(slot.is_whole for slot in able):
        told = _run(able, given, tell)
        after = look(entry, given)
    if after.is_whole and after.piece is not None:
        results = [result for slot in after.cells for result in slot.results if result]
        written(after.piece, given.order, results, time.monotonic() - start_s)
    return after.with_troubles([told.get(slot.cell.experiment, "") for slot in after.cells])


def _run(able: Sequence[Slot], given: Given, tell: Tell) -> dict[Experiment, str]:
    """Run cells at once; where one cannot go on, each by itself. Returns what stopped whom."""
    try:
        run_all(_asked(able), given.order.place, given.order.jobs, tell)
    except Stopped:
        raise
    except (WrongInput, Failed):
        pass
    else:
        return {}
    troubles: dict[Experiment, str] = {}
    for slot in able:
        try:
            run_all(_asked([slot]), given.order.place, given.order.jobs, tell)
        except Stopped:
            raise
        except (WrongInput, Failed) as error:
            troubles[slot.cell.experiment] = str(error)
    return troubles


def _asked(cells: Sequence[Slot]) -> list[Experiment]:
    """What has not been run of cells, here or elsewhere."""
    pairs = [pair for slot in cells for pair in zip(slot.stages, slot.results, strict=True)]
    return [on.experiment for on, result in pairs if result is None]
