"""`smidgen simulate run`, and how every command of experiments is made: a bar, tables, pictures."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import update_wrapper
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
from profiling.instruments.child import terminable
from simulation.api import JOBS, OUT, SEEDS
from simulation.experiments.experiment import ExperimentError
from simulation.experiments.experiment_file import read_experiment
from simulation.experiments.runner import Place
from simulation.papers.pieces import piece_of
from simulation.papers.report import Order, Piece, play
from simulation.papers.scenario import Cell, Scenario

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
        if len({cell.name for cell in cells}) < len(cells):
            raise ExperimentError(
                "two files have one `name` and paradigm; they would share a row: rename one"
            )
        place = Place(data, out / "experiments", ray, plugins, device)
        chosen = Scenario("run", "Experiments of your own: accuracy in %", tuple(cells), ())
        play(Piece(chosen), Order(range(seeds), place, jobs, out, json_output))


def plays(
    seeds: int = 3, without: Collection[str] = ()
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., None]]:
    """Make a command of a function that chooses a scenario: it returns `piece_of`'s arguments.

    What the function takes are the command's own options, listed first; every such command has the
    same others. It may also return `seeds`, or `counted`: what `_show` shows, nothing being run.

    Args:
        seeds: How many, where nobody says.
        without: Options that the command has not.
    """

    def made(choose: Callable[..., dict[str, Any]]) -> Callable[..., None]:
        def command(
            *,
            base: BaseOption = EMBEDDED,
            data: DataOption = None,
            out: OutOption = OUT,
            seeds: SeedsOption = seeds,
            rounds: RoundsOption = 0,
            jobs: JobsOption = 1,
            device: DeviceOption = CPU,
            ray: RayOption = "",
            quick: QuickOption = False,
            json_output: JsonOption = False,
            **own: Any,
        ) -> None:
            asked = choose(**own)
            if "counted" in asked:
                _show(asked, json_output)
                return
            words = {*asked.pop("words", ()), "quick" if quick else "whole"}
            count = asked.pop("seeds", 1 if quick else seeds)
            with resumable(out):
                place = Place(data, out / "experiments", ray, device=device)
                piece = piece_of(place=place, words=words, base=base, **asked)
                piece = replace(piece, scenario=piece.scenario.lasting(rounds))
                play(piece, Order(range(count), place, jobs, out, json_output))

        *shared, _ = signature(command).parameters.values()
        there = [option for option in shared if option.name not in without]
        named = update_wrapper(command, choose, ("__module__", "__name__", "__doc__"), ())
        own = signature(choose).parameters.values()
        vars(named)["__signature__"] = Signature([*own, *there])  # which Typer goes by
        return named

    return made


def _show(asked: dict[str, Any], json_output: bool) -> None:
    """A table that was counted, and its rows for machines."""
    table, rows = asked["counted"]
    show(table, file=sys.stderr if json_output else sys.stdout)
    if json_output:
        print(json.dumps({"scenario": asked["name"], "rows": rows}))


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say after a Ctrl-C or SIGTERM how to go on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as error:
        raise Stopped(f"stopped; the same command goes on from {out}") from error


def one_of(option: str, values: Sequence[str] | None, known: Sequence[str]) -> None:
    """Refuse a value of an option, or of one that is repeated, that is not among the known ones."""
    other = next((value for value in values or () if value not in known), None)
    demand(other is None, f"{option} {other!r} is not one of {', '.join(known)}")
