"""`smidgen simulate run`, `aug-fedprompt`, `mfpt`: experiments with a bar, tables and pictures."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from edge_client.adapters.spec import AdapterError
from edge_client.bases.base import EMBEDDED, BaseError
from edge_client.engine.engine import EngineError
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import TaskError
from simulation.experiments.experiment import ExperimentError, read_experiment
from simulation.experiments.federation import SimulationError
from simulation.experiments.record import RecordError
from simulation.experiments.runner import Place
from simulation.papers import aug_fedprompt, labelling_cost, mfpt
from simulation.papers.mfpt_tables import (
    EMBEDDED_MIXTURE,
    distance_table,
    parse_mixture,
    traffic_table,
)
from simulation.papers.report import Order, play
from simulation.papers.scenario import Cell, Scenario
from simulation.papers.typology import TypologyError, distance
from simulation.population.clients import PopulationError

EXPECTED = (
    *(AdapterError, BaseError, DataError, EngineError, ExperimentError),
    *(PopulationError, RecordError, TaskError, TypologyError),
)
AUG_NAMES = (*aug_fedprompt.NAMES, "cost")
MFPT_NAMES = (*mfpt.NAMES, "traffic")
BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets; $SMIDGEN_DATA by default.")
]
OutOption = Annotated[Path, typer.Option(help="Results; finished experiments are not run again.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="How many, from 0 on.")]
RoundsOption = Annotated[
    int, typer.Option(min=0, max=1_000_000, help="Other than the scenario's; 0: its own.")
]
JobsOption = Annotated[int, typer.Option(min=1, help="Experiments at once, a process each.")]
RayOption = Annotated[str, typer.Option(help="Address of a Ray cluster that trains, or `local`.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="One seed, reduced: minutes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line of stdout: one JSON object.")]
OUT = Path("smidgen-results")


def aug_fedprompt_command(
    name: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="table2, fig2 (skew), fig4, cost.")
    ],
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
    _one_of("SCENARIO", name, AUG_NAMES)
    _one_of("--dataset", dataset, tuple(aug_fedprompt.LABELS))
    with one_line_errors(out):
        asked = (base, dataset, adapter, quick)
        is_cost = name == "cost"
        chosen = labelling_cost.cost(*asked) if is_cost else aug_fedprompt.scenario(name, *asked)
        place = Place(data, out / "experiments", ray)
        more = {"cost": labelling_cost.cost_table, "table2": labelling_cost.label_table}.get(name)
        order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
        play(chosen.lasting(rounds), order, more)


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
    if pretraining and name != "distance":
        _stop(2, f"--pretraining is for `mfpt distance`, not for {name}")
    if name == "traffic":
        table, rows = traffic_table()
        Console(stderr=json_output).print(table)
        if json_output:
            print(json.dumps({"scenario": "mfpt traffic", "rows": rows}))
        return
    with one_line_errors(out):
        chosen = mfpt.scenario(name, base, quick).lasting(rounds)
        more = None
        if name == "distance":
            mixture = parse_mixture(pretraining) if pretraining else EMBEDDED_MIXTURE
            for language in chosen.cells[0].experiment.languages:
                distance(language, mixture)  # all vectors are there, before hours of work
            more = partial(distance_table, mixture=mixture)
        place = Place(data, out / "experiments", ray)
        play(chosen, Order(range(1 if quick else seeds), place, jobs, out, json_output), more)


def run_command(
    files: Annotated[list[Path], typer.Argument(help="Experiments, TOML; a row each.")],
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from each file's own on.")] = 1,
    jobs: JobsOption = 1,
    ray: RayOption = "",
    json_output: JsonOption = False,
) -> None:
    """Run experiments of your own."""
    with one_line_errors(out):
        cells = [Cell(said.name, said.paradigm, said) for said in map(read_experiment, files)]
        names = [(cell.row, cell.column) for cell in cells]
        if len(set(names)) < len(names):
            raise ExperimentError(
                "two files have one `name` and paradigm; they would share a row: rename one"
            )
        place = Place(data, out / "experiments", ray)
        chosen = Scenario("run", "accuracy in %", tuple(cells), ())
        play(chosen, Order(range(seeds), place, jobs, out, json_output))


@contextmanager
def one_line_errors(out: Path) -> Iterator[None]:
    """Turn what is expected to go wrong into one line and an exit code; SIGTERM is a Ctrl-C."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except EXPECTED as error:
        _stop(2, str(error))
    except (SimulationError, OSError) as error:
        _stop(1, str(error))
    except KeyboardInterrupt:
        _stop(130, f"stopped; the same command goes on from {out}")
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        _stop(2, f"{option} {value!r} is not one of {', '.join(known)}")


def _stop(code: int, message: str) -> NoReturn:
    print(f"smidgen simulate: {' '.join(message.split())}", file=sys.stderr)
    raise typer.Exit(code)
