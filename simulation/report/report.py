"""Plays a scenario: progress bar, then tables, charts, files, and the provenance of the figures.

Provenance (base, texts, settings, versions, machine, date, files) is printed below the tables, and
written to `summary.json` for machines.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from smidgen.edge_client.tables import Table, show, tell
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.profiling.instruments.environment import this_machine
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import ROWS, Result
from smidgen.simulation.experiments.runner import Place, run_all, versions
from smidgen.simulation.experiments.stage import Stage, stage
from smidgen.simulation.report.plots import draw
from smidgen.simulation.report.scenario import (
    Measured,
    Scenario,
    accuracy_table,
    cost_table,
    language_table,
    markdown,
    measured,
    summary,
    trained_of,
)


def facts(scenario: Scenario, stages: Sequence[Stage], seeds: int) -> list[str]:
    """What the figures are of: base, texts, sizes, seeds, and how far they can be trusted."""
    return [*sources(stages), *sizes(scenario, stages, seeds)]


def sources(stages: Sequence[Stage]) -> list[str]:
    """Bases and data sets, one line each."""
    lines = [
        f"base {Path(base.name).name}, {base.layers} layers, {base.base_id[:12]}"
        for base in {on.base.base_id: on.base for on in stages}.values()
    ]
    lines.extend(
        f"{texts.name}: {texts.origin}; licence: {texts.licence}; {texts.sha256[:12]}"
        for texts in _sets(stages)
    )
    return lines


def _sets(stages: Sequence[Stage]) -> list[DataSet]:
    return list({on.dataset.sha256: on.dataset for on in stages}.values())


def sizes(scenario: Scenario, stages: Sequence[Stage], seeds: int) -> list[str]:
    """How texts differ from the published ones, what is trained, how far figures can be trusted.

    Args:
        scenario: What was run.
        stages: One per experiment.
        seeds: How many.
    """
    lines = [f"{texts.name}: {note}" for texts in _sets(stages) for note in texts.notes]
    trained = [cell.experiment for cell in scenario.cells if cell.experiment.is_trained]
    adapters = dict.fromkeys(map(trained_of, trained))
    rounds = ", ".join(str(n) for n in sorted({experiment.rounds for experiment in trained})) or "0"
    tests = min(_asked(scenario, on) for on in stages)
    error = 100 * 0.5 / math.sqrt(tests)
    spread = "one seed, so no spread" if seeds == 1 else f"{seeds} seeds, ± is their spread"
    told = f"{', '.join(adapters) or 'nothing trained'}; {rounds} rounds; {spread}"
    if all(kind_of(on.dataset.task).is_one_label for on in stages):  # one answer for each text
        known = f"{tests:,} test texts has an error of up to {error:.1f}"
        told += f"; an accuracy on {known} of its own"
    lines.append(told)
    return lines


def _asked(scenario: Scenario, on: Stage) -> int:
    """Test texts that a figure is of: all, or those of the one language that cells are of."""
    languages = {cell.language for cell in scenario.cells}
    of_all = "" in languages or not languages
    return min(
        sum(of_all or text.language == one for text in on.dataset.test) for one in languages or {""}
    )


def provenance(stages: Sequence[Stage], seconds: float) -> dict[str, object]:
    """The same as data, with when, where and how long.

    Args:
        stages: One per experiment of the scenario.
        seconds: Wall clock of this command; results that were there before took none of it.
    """
    bases = {on.base.base_id: on.base for on in stages}.values()
    sets = {on.dataset.sha256: on.dataset for on in stages}.values()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": asdict(this_machine()),
        "versions": versions(),
        "bases": [
            {"name": Path(base.name).name, "base_id": base.base_id, "layers": base.layers}
            for base in bases
        ],
        "datasets": [
            {
                "name": texts.name,
                "origin": texts.origin,
                "licence": texts.licence,
                "sha256": texts.sha256,
                "patterns": list(texts.task.asked()),
                "notes": list(texts.notes),
            }
            for texts in sets
        ],
    }


def settings_of(stages: Sequence[Stage], out: Path) -> dict[str, object]:
    """One cell's settings, and where the rows of its rounds are.

    Args:
        stages: The cell's experiment with each seed.
        out: Folder of experiments.
    """
    said = asdict(stages[0].experiment)
    del said["name"], said["seed"]
    files = [path for on in stages if (path := rows_of(on, out)).is_file()]  # others ran elsewhere
    return {"settings": _finite(said), "rows_files": list(map(str, files))}


def rows_of(on: Stage, out: Path) -> Path:
    """The file with one row per round of an experiment."""
    return out / on.key / ROWS


def _finite(value: Any) -> Any:
    """The same without numbers that JSON has not: `inf` becomes that word."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


More = Callable[[Sequence[Measured]], tuple[Table | Sequence[Table], Any]]
Draw = Callable[[Sequence[Measured], Path, str], list[Path]]
Apart = Callable[[Scenario, Sequence[Measured]], Table | None]


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
        apart: Makes the table of what the scenario's pairs differ by.
    """

    scenario: Scenario
    more: More | None = None
    drawn: Draw = draw
    apart: Apart = lambda *_: None


@dataclass(frozen=True)
class Told:
    """What a scenario found, and where it was written.

    Attributes:
        scenario: With notes on base, texts and sizes before its own.
        found: Its cells with their results.
        stages: By cell, one per seed.
        own: Tables that `Piece.more` made.
        apart: That of `Piece.apart`.
        plain: The same for machines.
        written: Files of figures and pictures.
    """

    scenario: Scenario
    found: Sequence[Measured]
    stages: Sequence[Sequence[Stage]]
    own: Sequence[Table]
    apart: Table | None
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
    apart = piece.apart(scenario, found)
    return Told(scenario, found, by_cell, own, apart, plain, files)


def results_of(asked: Sequence[Experiment], order: Order, console: Console) -> list[Result]:
    """Run experiments below a bar that says how far they are."""
    of = TextColumn("{task.fields[of]}")
    with Progress(
        TextColumn("{task.description:<40.40}"),
        BarColumn(),
        of,
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        line = bar.add_task("starting", total=None, of="")

        def tell(done: int, total: int, name: str) -> None:
            of = f"{done}/{total} rounds"
            bar.update(line, description=name, completed=done, total=total, of=of)

        return run_all(asked, order.place, order.jobs, tell)


def _tell(told: Told, console: Console) -> None:
    scenario, found = told.scenario, told.found
    usual = [
        accuracy_table(scenario, found),
        told.apart,
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
