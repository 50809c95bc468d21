"""A scenario played: a bar while it runs, then tables, pictures and files of what it found."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from edge_client.tables import Table, show, tell
from simulation.experiments.record import Result
from simulation.experiments.runner import Place, run_all
from simulation.experiments.stage import stage
from simulation.papers.plots import draw
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
    found = measured(scenario, order.seeds, _results(scenario, order, console))
    failures = [line for item in found if (line := item.failures())]
    scenario = replace(scenario, notes=(*facts(scenario, order), *scenario.notes, *failures))
    plain = summary(scenario, order.seeds, found)
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


def facts(scenario: Scenario, order: Order) -> list[str]:
    """What the figures are of: base, texts, sizes, seeds, and how far they can be trusted."""
    stages = [stage(cell.experiment, order.place.data) for cell in scenario.cells]
    lines = []
    for base in {on.base.base_id: on.base for on in stages}.values():
        lines.append(f"base {Path(base.name).name}, {base.layers} layers, {base.base_id[:12]}")
    for on in {on.dataset.sha256: on for on in stages}.values():
        texts = on.dataset
        lines.append(f"{texts.name}: {texts.origin}; licence: {texts.licence}; {texts.sha256[:12]}")
        lines += [f"{texts.name}: {note}" for note in texts.notes]
    adapters = dict.fromkeys(cell.experiment.adapter for cell in scenario.cells)
    trained = {cell.experiment.rounds for cell in scenario.cells} - {0}
    rounds = ", ".join(str(count) for count in sorted(trained)) or "0"
    tests = min(len(on.dataset.test) for on in stages)
    error = 100 * 0.5 / math.sqrt(tests)
    lines.append(
        f"{', '.join(adapters)}; {rounds} rounds; {len(order.seeds)} seeds, +- is their spread on "
        f"the same {tests:,} test texts, whose own error of up to {error:.1f} comes on top"
    )
    return lines


def _tell(
    scenario: Scenario, tables: Sequence[Table | None], written: Sequence[Path], console: Console
) -> None:
    show(*(table for table in tables if table is not None), file=console.file)
    source = [f"[published] {scenario.source}"] if scenario.source else []
    tell((*source, *(f"- {note}" for note in scenario.notes)), console.file)
    for path in written:
        print(f"written  {path}", file=console.file)
