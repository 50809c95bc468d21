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
from simulation.experiments.record import Result
from simulation.experiments.runner import Place, run_all
from simulation.experiments.stage import Stage, stage
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

More = Callable[[Sequence[Measured]], tuple[Table, Any]]


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


def play(scenario: Scenario, order: Order, more: More | None = None) -> None:
    """Run a scenario, then tell and draw what it found.

    Args:
        scenario: What.
        order: How.
        more: Makes a further table, and the same for machines.
    """
    console = Console(stderr=order.is_json)
    folder = order.out / scenario.name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    found = measured(scenario, order.seeds, _results(scenario, order, console))
    seconds, count = time.monotonic() - start, len(order.seeds)
    stages = [stage(asked, order.place.data) for asked in scenario.experiments(order.seeds)]
    failures = [line for item in found if (line := item.failures())]
    notes = (*facts(scenario, stages, count), *scenario.notes, *failures)
    scenario = replace(scenario, notes=notes)
    plain = summary(scenario, order.seeds, found) | provenance(stages, seconds)
    by_cell = [stages[at : at + count] for at in range(0, len(stages), count)]
    for cell, asked in zip(plain["cells"], by_cell, strict=True):
        cell |= settings_of(asked, order.place.out)
    tables = [accuracy_table(scenario, found), language_table(found), cost_table(found)]
    if more is not None:
        table, plain["more"] = more(found)
        tables.insert(0, table)
    texts = {
        "summary.json": f"{json.dumps(plain, indent=2)}\n",
        "table.md": markdown(scenario, found),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = [*(folder / name for name in texts), *draw(found, folder, scenario.title)]
    _tell(scenario, tables, written, console)
    _tell_rows(found, by_cell, order.place.out, console)
    if order.is_json:
        print(json.dumps(plain))


def _results(scenario: Scenario, order: Order, console: Console) -> list[Result]:
    of = TextColumn("{task.fields[of]}")
    columns = (TextColumn("{task.description:<40.40}"), BarColumn(), of, TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("starting", total=None, of="")

        def tell(done: int, total: int, name: str) -> None:
            of = f"{done}/{total} rounds"
            bar.update(line, description=name, completed=done, total=total, of=of)

        return run_all(scenario.experiments(order.seeds), order.place, order.jobs, tell)


def _tell(
    scenario: Scenario, tables: Sequence[Table | None], written: Sequence[Path], console: Console
) -> None:
    show(*(table for table in tables if table is not None), file=console.file)
    source = [f"[published] {scenario.source}"] if scenario.source else []
    tell((*source, *(f"- {note}" for note in scenario.notes)), console.file)
    for path in written:
        print(f"written  {path}", file=console.file)


def _tell_rows(
    found: Sequence[Measured], by_cell: Sequence[Sequence[Stage]], out: Path, console: Console
) -> None:
    """The file of rows of every cell; one in braces per seed, as a shell takes it."""
    for item, stages in zip(found, by_cell, strict=True):
        paths = [rows_of(on, out) for on in stages]
        keys = ",".join(path.parent.name for path in paths)
        where = out / (keys if len(paths) == 1 else f"{{{keys}}}") / paths[0].name
        print(f"rows     {where}  {item.name}", file=console.file)
