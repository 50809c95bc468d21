"""`smidgen simulate run`, `aug-fedprompt`, `mfpt`: experiments with a bar, tables and pictures."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.plugins import know_folder
from edge_client.bases.base import EMBEDDED
from edge_client.commands.console import DeviceOption
from edge_client.errors import Stopped, demand
from edge_client.planning.cuda.accelerator import CPU
from edge_client.tables import show
from profiling.instruments.interrupts import terminable
from simulation.api import JOBS, OUT, SEEDS
from simulation.experiments.experiment import ExperimentError
from simulation.experiments.experiment_file import read_experiment
from simulation.experiments.hostile import ATTACKS
from simulation.experiments.runner import Place
from simulation.papers.few_shot import scenarios as aug_fedprompt
from simulation.papers.few_shot.setting import size_of
from simulation.papers.labelling.cost import cost
from simulation.papers.labelling.cost_table import cost_table
from simulation.papers.labelling.label_table import label_table
from simulation.papers.learning import attacks
from simulation.papers.multilingual import scenarios as mfpt
from simulation.papers.multilingual.tables import (
    EMBEDDED_MIXTURE,
    distance_table,
    parse_mixture,
    stop_table,
    traffic_table,
)
from simulation.papers.multilingual.typology import distance
from simulation.papers.published.aug_fedprompt import LABELS
from simulation.papers.report import More, Order, play
from simulation.papers.scenario import Cell, Scenario

AUG_NAMES = (*aug_fedprompt.NAMES, "cost")
MFPT_NAMES = (*mfpt.NAMES, "traffic")
FEW_SHOT = "table2, fig2 (skew), fig4 (labels), fig5 (bases), rates (on dev texts), cost."
BY_MEAN = f"Forged updates against {', '.join(attacks.MEANS)}, without any other defence."
PLUGINS = "Folder of Python files with means, optimizers and selections that files may name."
BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets; $SMIDGEN_DATA by default.")
]
OutOption = Annotated[Path, typer.Option(help="Results; finished experiments are not run again.")]
SeedsOption = Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds, from 0 on.")]
RoundsOption = Annotated[
    int,
    typer.Option(min=0, max=1_000_000, help="Rounds of training; 0: as many as the scenario says."),
]
JobsOption = Annotated[
    int, typer.Option(min=1, max=1024, help="Experiments at once, one process each.")
]
RayOption = Annotated[str, typer.Option(help="Address of a Ray cluster that trains, or `local`.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="One seed, reduced: minutes.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line of stdout: one JSON object.")]


def aug_fedprompt_command(
    name: Annotated[
        str,
        typer.Argument(metavar="SCENARIO", help=FEW_SHOT),
    ],
    base: BaseOption = EMBEDDED,
    dataset: Annotated[str, typer.Option(help=", ".join(LABELS))] = "ag_news",
    adapter: Annotated[
        str, typer.Option(help="Adapter of the cloze rows: lora:8, full ...")
    ] = "lora:8",
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Few-shot federated NLP: cloze against a head, skew, numbers of labels."""
    one_of("SCENARIO", name, AUG_NAMES)
    one_of("--dataset", dataset, tuple(LABELS))
    with resumable(out):
        asked, is_cost = (base, dataset, adapter), name == "cost"
        if is_cost:
            chosen = cost(*asked, quick)
        else:
            chosen = aug_fedprompt.scenario(name, *asked, size_of(quick))
        place = Place(data, out / "experiments", ray, device=device)
        more = cost_table if is_cost else None
        if name == "table2" and any(cell.experiment.labelling for cell in chosen.cells):
            more = label_table
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
    device: DeviceOption = CPU,
    ray: RayOption = "",
    quick: QuickOption = False,
    pretraining: Annotated[
        str, typer.Option(help="distance: languages the base read, en=0.6,fr=0.4.")
    ] = "",
    json_output: JsonOption = False,
) -> None:
    """Multilingual federated prompt tuning: one silo per language, local to federated."""
    one_of("SCENARIO", name, MFPT_NAMES)
    is_read = not pretraining or name == "distance"
    demand(is_read, f"--pretraining is for `mfpt distance`, not for {name}")
    if name == "traffic":
        table, rows = traffic_table()
        show(table, file=sys.stderr if json_output else sys.stdout)
        if json_output:
            print(json.dumps({"scenario": "mfpt traffic", "rows": rows}))
        return
    with resumable(out):
        chosen = mfpt.scenario(name, base, quick).lasting(rounds)
        more = stop_table if name == "stopping" else None
        if name == "distance":
            mixture = parse_mixture(pretraining) if pretraining else EMBEDDED_MIXTURE
            for language in chosen.cells[0].experiment.languages:
                distance(language, mixture)  # all vectors are there, before hours of work
            more = partial(distance_table, mixture=mixture)
        place = Place(data, out / "experiments", ray, device=device)
        play(chosen, Order(range(1 if quick else seeds), place, jobs, out, json_output), more)


def attacks_command(
    attack: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {', '.join(ATTACKS)}.")
    ] = None,
    by_mean: Annotated[bool, typer.Option("--by-mean", help=BY_MEAN)] = False,
    base: BaseOption = EMBEDDED,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    device: DeviceOption = CPU,
    json_output: JsonOption = False,
) -> None:
    """Hostile devices in a run: without the defences and with them, or by mean."""
    demand(not (by_mean and attack), "--by-mean takes its own attacks; leave --attack out")
    for name in attack or ():
        one_of("--attack", name, ATTACKS)
    with resumable(out):
        asked = [name for name in ATTACKS if name in (attack or ATTACKS)]
        messages = attacks.write_messages(out / "messages")
        chosen = (
            attacks.aggregations(messages, base)
            if by_mean
            else attacks.attacks(messages, base, asked)
        )
        place = Place(None, out / "experiments", device=device)
        order = Order(range(seeds), place, jobs, out, json_output)
        play(chosen.lasting(rounds), order, attacks.paired_table)


def run_command(
    files: Annotated[list[Path], typer.Argument(help="TOML experiment files; one row each.")],
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of seeds, from each file's own on.")
    ] = SEEDS,
    jobs: JobsOption = JOBS,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    plugins: Annotated[Path | None, typer.Option(help=PLUGINS)] = None,
    json_output: JsonOption = False,
) -> None:
    """Run experiments of your own."""
    if plugins is not None:
        know_folder(plugins)
    with resumable(out):
        cells = [Cell(said.name, said.paradigm, said) for said in map(read_experiment, files)]
        names = [(cell.row, cell.column) for cell in cells]
        if len(set(names)) < len(names):
            raise ExperimentError(
                "two files have one `name` and paradigm; they would share a row: rename one"
            )
        place = Place(data, out / "experiments", ray, plugins, device)
        chosen = Scenario("run", "Experiments of your own: accuracy in %", tuple(cells), ())
        play(chosen, Order(range(seeds), place, jobs, out, json_output))


def compares(
    more: More, seeds: int = 3
) -> Callable[[Callable[..., Scenario]], Callable[..., None]]:
    """Make a command of a function that chooses what is compared.

    The function is given `base` and `quick`; what else it takes are the command's own options,
    listed first, and every such command has the same others.

    Args:
        more: Makes the table that stands above all others.
        seeds: How many, where nobody says.
    """

    def made(choose: Callable[..., Scenario]) -> Callable[..., None]:
        def command(
            *,
            base: BaseOption = EMBEDDED,
            data: DataOption = None,
            out: OutOption = OUT,
            seeds: SeedsOption = seeds,
            rounds: RoundsOption = 0,
            jobs: JobsOption = 1,
            device: DeviceOption = CPU,
            quick: QuickOption = False,
            json_output: JsonOption = False,
            **own: Any,
        ) -> None:
            with resumable(out):
                chosen = choose(base, quick, **own).lasting(rounds)
                place = Place(data, out / "experiments", device=device)
                order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
                play(chosen, order, more)

        _, _, *own = signature(choose).parameters.values()
        *shared, _ = signature(command).parameters.values()
        named = update_wrapper(command, choose, ("__module__", "__name__", "__doc__"), ())
        vars(named)["__signature__"] = Signature([*own, *shared])  # which Typer goes by
        return named

    return made


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say after a Ctrl-C or SIGTERM how to go on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as error:
        raise Stopped(f"stopped; the same command goes on from {out}") from error


def one_of(option: str, value: str, known: Sequence[str]) -> None:
    demand(value in known, f"{option} {value!r} is not one of {', '.join(known)}")
