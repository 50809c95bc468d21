"""`smidgen simulate run`, `aug-fedprompt`, `mfpt`: experiments with a bar, tables and pictures."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from edge_client.adapters import AdapterError
from edge_client.base import EMBEDDED, BaseError
from edge_client.engine import EngineError
from edge_client.tasks import TaskError
from edge_client.texts import DataError
from simulation import aug_fedprompt, mfpt
from simulation.experiment import ExperimentError, read_experiment
from simulation.experiment_plots import draw
from simulation.federation import SimulationError
from simulation.mfpt_tables import EMBEDDED_MIXTURE, distance_table, parse_mixture, traffic_table
from simulation.population import PopulationError
from simulation.record import RecordError
from simulation.runner import Place, run_all
from simulation.scenario import (
    Cell,
    Measured,
    Scenario,
    accuracy_table,
    cost_table,
    language_table,
    markdown,
    measured,
    summary,
)
from simulation.typology import TypologyError

EXPECTED = (
    *(AdapterError, BaseError, DataError, EngineError, ExperimentError),
    *(PopulationError, RecordError, TaskError),
)
MFPT_NAMES = (*mfpt.NAMES, "traffic")
BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets; $SMIDGEN_DATA by default.")
]
OutOption = Annotated[Path, typer.Option(help="Results; finished experiments are not run again.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="How many, from 0 on.")]
RoundsOption = Annotated[int, typer.Option(min=0, help="Other than the scenario's; 0: its own.")]
JobsOption = Annotated[int, typer.Option(min=1, help="Experiments at once, a process each.")]
RayOption = Annotated[str, typer.Option(help="Address of a Ray cluster that trains, or `local`.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="One seed, reduced: minutes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line of stdout: one JSON object.")]
OUT = Path("smidgen-results")


def aug_fedprompt_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help="table2, fig2 (skew), fig4.")],
    base: BaseOption = EMBEDDED,
    dataset: Annotated[str, typer.Option(help=", ".join(aug_fedprompt.LABELS))] = "ag_news",
    adapter: Annotated[str, typer.Option(help="Of the cloze rows: lora:8, full ...")] = "lora:8",
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    ray: RayOption = "",
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Few-shot federated NLP: cloze against a head, skew, numbers of labels."""
    _one_of("SCENARIO", name, aug_fedprompt.NAMES)
    _one_of("--dataset", dataset, tuple(aug_fedprompt.LABELS))
    try:
        chosen = aug_fedprompt.scenario(name, base, dataset, adapter, quick)
    except ExperimentError as error:
        _stop(2, str(error))
    place = Place(data, out / "experiments", ray)
    play(chosen.lasting(rounds), range(1 if quick else seeds), place, jobs, out, json_output)


def mfpt_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(MFPT_NAMES))],
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    ray: RayOption = "",
    quick: QuickOption = False,
    pretraining: Annotated[
        str, typer.Option(help="distance: languages the base read, en=0.6,fr=0.4.")
    ] = "",
    json_output: JsonOption = False,
) -> None:
    """Multilingual federated prompt tuning: a silo a language, local to federated."""
    _one_of("SCENARIO", name, MFPT_NAMES)
    if name == "traffic":
        _tell_traffic(json_output)
        return
    more = None
    try:
        if name == "distance":
            mixture = parse_mixture(pretraining) if pretraining else EMBEDDED_MIXTURE
            more = partial(distance_table, mixture=mixture)
    except TypologyError as error:
        _stop(2, str(error))
    chosen = mfpt.scenario(name, base, quick)
    place = Place(data, out / "experiments", ray)
    lasting = chosen.lasting(rounds)
    play(lasting, range(1 if quick else seeds), place, jobs, out, json_output, more)


def _tell_traffic(is_json: bool) -> None:
    table, rows = traffic_table()
    Console(stderr=is_json).print(table)
    if is_json:
        print(json.dumps({"scenario": "mfpt traffic", "rows": rows}))


def run_command(
    files: Annotated[list[Path], typer.Argument(help="Experiments, TOML; a row each.")],
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 1,
    jobs: JobsOption = 1,
    ray: RayOption = "",
    json_output: JsonOption = False,
) -> None:
    """Run experiments of your own."""
    try:
        found = [read_experiment(path) for path in files]
    except ExperimentError as error:
        _stop(2, str(error))
    cells = tuple(Cell(item.name, item.paradigm, item) for item in found)
    chosen = Scenario("run", "accuracy in %", cells, ())
    first = found[0].seed
    place = Place(data, out / "experiments", ray)
    play(chosen, range(first, first + seeds), place, jobs, out, json_output)


def play(
    scenario: Scenario,
    seeds: Sequence[int],
    place: Place,
    jobs: int,
    out: Path,
    is_json: bool,
    more: Callable[[Sequence[Measured]], tuple[Table, Any]] | None = None,
) -> None:
    """Run a scenario, then tell and draw what it found.

    Args:
        scenario: What.
        seeds: Each experiment is run with each.
        place: Where experiments find and leave things.
        jobs: Processes at once.
        out: Folder of summaries and pictures.
        is_json: Whether the last line of stdout is the summary.
        more: Makes a further table, and the same for machines.
    """
    console = Console(stderr=is_json)
    experiments = scenario.experiments(seeds)
    columns = (
        TextColumn("{task.description:<40.40}"),
        BarColumn(),
        TextColumn("{task.fields[of]}"),
    )
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
            line = bar.add_task("starting", total=None, of="")

            def tell(done: int, total: int, name: str) -> None:
                of = f"{done}/{total} rounds"
                bar.update(line, description=name, completed=done, total=total, of=of)

            results = run_all(experiments, place, jobs, tell)
    except (*EXPECTED, SimulationError) as error:
        _stop(1 if isinstance(error, SimulationError) else 2, str(error))
    except KeyboardInterrupt:
        _stop(130, f"stopped; the same command goes on from {place.out}")
    found = measured(scenario, seeds, results)
    folder = out / scenario.name.replace(" ", "-")
    plain = summary(scenario, seeds, found)
    tables = [accuracy_table(scenario, found), language_table(found), cost_table(found)]
    if more is not None:
        table, plain["more"] = more(found)
        tables.insert(0, table)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(f"{json.dumps(plain, indent=2)}\n", encoding="utf-8")
    (folder / "table.md").write_text(markdown(scenario, found), encoding="utf-8")
    pictures = draw(found, folder, scenario.title)
    _tell(scenario, tables, [folder / "summary.json", folder / "table.md", *pictures], console)
    if is_json:
        print(json.dumps(plain))


def _tell(
    scenario: Scenario, tables: Sequence[Table | None], written: Sequence[Path], console: Console
) -> None:
    for table in tables:
        if table is not None:
            console.print(table)
    if scenario.source:
        console.print(
            f"[published] {scenario.source}", highlight=False, soft_wrap=True, markup=False
        )
    for note in scenario.notes:
        console.print(f"- {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"written  {path}", highlight=False, soft_wrap=True)


def _one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        _stop(2, f"{option} {value!r} is not one of {', '.join(known)}")


def _stop(code: int, message: str) -> NoReturn:
    print(f"smidgen simulate: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)
