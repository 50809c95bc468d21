"""`smidgen simulate run`, and options of all commands of experiments."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from smidgen.coordinator.plugins import know_folder
from smidgen.edge_client.commands.console import DeviceOption, JsonOption
from smidgen.edge_client.errors import Stopped
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.profiling.instruments.child import terminable
from smidgen.simulation.api import JOBS, OUT, SEEDS
from smidgen.simulation.experiments.experiment import ExperimentError, read_experiment
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.report.report import Order, Piece, play
from smidgen.simulation.report.scenario import Cell, Scenario

BaseOption = Annotated[str, typer.Option(help="Folder, hub name, or `embedded`.")]
DataOption = Annotated[
    Path | None, typer.Option(help="Folder of data sets. Default: $SMIDGEN_DATA.")
]
OutOption = Annotated[Path, typer.Option(help="Folder of results; finished experiments are kept.")]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Number of seeds, counting from 0.")
]
JobsOption = Annotated[
    int, typer.Option(min=1, max=1024, help="Experiments at once, one process each.")
]
RayOption = Annotated[str, typer.Option(help="Train on a Ray cluster: its address, or `local`.")]


def run_command(
    files: Annotated[list[Path], typer.Argument(help="Experiment files (TOML); one row each.")],
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of seeds, counting from the file's own.")
    ] = SEEDS,
    jobs: JobsOption = JOBS,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    plugins: Annotated[
        Path | None,
        typer.Option(
            help="Folder of Python files that define means, optimizers or selections for the "
            "experiments."
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Run your own experiments, described in TOML files."""
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
