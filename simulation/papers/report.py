"""A scenario played: a bar while it runs, then tables, pictures and files of what it found."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from edge_client.tables import Table, show, tell
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import Result
from simulation.experiments.runner import Place, run_all
from simulation.experiments.stage import Stage, stage
from simulation.papers.paired import apart_table
from simulation.papers.plots import draw
from simulation.papers.provenance import facts, provenance, rows_of, settings_of
from simulation.papers.scenario import (
    Measured,
    Scenario,
    accuracy_table,
    cost_table,
    language_table,
    markdown,
    measured,
    summary,
)

More = Callable[[Sequence[Measured]], tuple[Table | Sequence[Table], Any]]
Draw = Callable[[Sequence[Measured], Path, str], list[Path]]


@dataclass(frozen=True)
class Order:
    """How a scenario is to be played.

    Attributes:
        seeds: Added to each experiment's own; each is run with each.
        place: Where experiments find and leave things.
        jobs: Processes at once.
        out: Folder of summaries and pictures.
        is_json: Whether the last line of stdout is the summary.
    """

    seeds: Sequence[int]
    place: Place
    jobs: int
    out: Path
    is_json: bool


@dataclass(frozen=True)
class Piece:
    """A scenario with tables and pictures of its own.

    Attributes:
        scenario: What is run.
        more: Makes a further table or several, and the same for machines.
        drawn: Draws the pictures.
    """

    scenario: Scenario
    more: More | None = None
    drawn: Draw = draw


@dataclass(frozen=True)
class Told:
    """What a scenario found, and where it was written.

    Attributes:
        scenario: With notes on base, texts and sizes before its own.
        found: Its cells with their results.
        stages: By cell, one per seed.
        own: Tables that `Piece.more` made.
        plain: The same for machines.
        written: Files of figures and pictures.
    """

    scenario: Scenario
    found: Sequence[Measured]
    stages: Sequence[Sequence[Stage]]
    own: Sequence[Table]
    plain: dict[str, Any]
    written: Sequence[Path]


def play(piece: Piece, order: Order) -> None:
    """Run a scenario, then tell and draw what it found.

    Args:
        piece: What, with tables and pictures of its own.
        order: How.
    """
    console = Console(stderr=order.is_json)
    start = time.monotonic()
    results = results_of(piece.scenario.experiments(order.seeds), order, console)
    told = written(piece, order, results, time.monotonic() - start)
    _tell(told, console)
    _tell_rows(told, order.place.out, console)
    if order.is_json:
        print(json.dumps(told.plain))


def written(piece: Piece, order: Order, results: Sequence[Result], seconds: float) -> Told:
    """Write down what a scenario found: `summary.json`, `table.md` and pictures.

    Args:
        piece: The scenario, with what is its own.
        order: Where to.
        results: In the order of `Scenario.experiments`.
        seconds: Wall clock that they took now.
    """
    scenario, count = piece.scenario, len(order.seeds)
    folder = order.out / scenario.name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    found = measured(scenario, order.seeds, results)
    stages = [stage(one, order.place.data) for one in scenario.experiments(order.seeds)]
    failures = [line for item in found if (line := item.failures())]
    notes = (*facts(scenario, stages, count), *scenario.notes, *failures)
    scenario = replace(scenario, notes=notes)
    plain = summary(scenario, order.seeds, found) | provenance(stages, seconds)
    by_cell = [stages[at : at + count] for at in range(0, len(stages), count)]
    for cell, on in zip(plain["cells"], by_cell, strict=True):
        cell |= settings_of(on, order.place.out)
    own: Sequence[Table] = ()
    if piece.more is not None:
        made, plain["more"] = piece.more(found)
        own = [made] if isinstance(made, Table) else made
    texts = {
        "summary.json": f"{json.dumps(plain, indent=2)}\n",
        "table.md": markdown(scenario, found, own),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    files = [*(folder / name for name in texts), *piece.drawn(found, folder, scenario.title)]
    return Told(scenario, found, by_cell, own, plain, files)


def results_of(asked: Sequence[Experiment], order: Order, console: Console) -> list[Result]:
    """Run experiments below a bar that says how far they are."""
    of = TextColumn("{task.fields[of]}")
    columns = (TextColumn("{task.description:<40.40}"), BarColumn(), of, TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("starting", total=None, of="")

        def tell(done: int, total: int, name: str) -> None:
            of = f"{done}/{total} rounds"
            bar.update(line, description=name, completed=done, total=total, of=of)

        return run_all(asked, order.place, order.jobs, tell)


def _tell(told: Told, console: Console) -> None:
    scenario, found = told.scenario, told.found
    usual = [
        accuracy_table(scenario, found),
        apart_table(scenario, found),
        language_table(found),
        cost_table(found),
    ]
    tables = [*told.own, *usual]
    show(*(table for table in tables if table is not None), file=console.file)
    source = [f"[published] {scenario.source}"] if scenario.source else []
    tell((*source, *(f"- {note}" for note in scenario.notes)), console.file)
    for path in told.written:
        print(f"written  {path}", file=console.file)


def _tell_rows(told: Told, out: Path, console: Console) -> None:
    """The file of rows of every cell; one in braces per seed, as a shell takes it."""
    for item, stages in zip(told.found, told.stages, strict=True):
        paths = [rows_of(on, out) for on in stages]
        keys = ",".join(path.parent.name for path in paths)
        where = out / (keys if len(paths) == 1 else f"{{{keys}}}") / paths[0].name
        print(f"rows     {where}  {item.name}", file=console.file)
