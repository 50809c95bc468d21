"""`smidgen simulate run`, and the options that every command of experiments has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from coordinator.plugins import know_folder
from edge_client.commands.console import DeviceOption
from edge_client.errors import Stopped
from edge_client.planning.cuda.accelerator import CPU
from profiling.instruments.child import terminable
from simulation.api import JOBS, OUT, SEEDS
from simulation.experiments.experiment import ExperimentError
from simulation.experiments.experiment_file import read_experiment
from simulation.experiments.runner import Place
from simulation.report.report import Order, Piece, play
from simulation.report.scenario import Cell, Scenario

PLUGINS = "Folder of Python files with means, optimizers and selections that files may name."
BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets; $SMIDGEN_DATA by default.")
]
OutOption = Annotated[Path, typer.Option(help="Results; finished experiments are not run again.")]
SeedsOption = Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds, from 0 on.")]
JobsOption = Annotated[
    int, typer.Option(min=1, max=1024, help="Experiments at once, one process each.")
]
RayOption = Annotated[str, typer.Option(help="Address of a Ray cluster that trains, or `local`.")]
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


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Say after a Ctrl-C or SIGTERM how to go on."""
    try:
        with terminable():
            yield
    except KeyboardInterrupt as error:
        raise Stopped(f"stopped; the same command goes on from {out}") from error
