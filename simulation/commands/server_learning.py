"""`smidgen simulate server-learning`: server optimizers, FedProx and SCAFFOLD beside FedAvg."""

from typing import Annotated

import typer

from edge_client.bases.base import EMBEDDED
from simulation.api import OUT
from simulation.commands.experiments import (
    BaseOption,
    DataOption,
    JobsOption,
    JsonOption,
    OutOption,
    QuickOption,
    RoundsOption,
    SeedsOption,
    one_of,
    resumable,
)
from simulation.experiments.runner import Place
from simulation.papers.report import Order, play
from simulation.papers.server_learning import METHODS, SETS, server_learning, target_table


def server_learning_command(
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside FedAvg; repeat: {', '.join(METHODS)}."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {', '.join(SETS)}.")
    ] = None,
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Server optimizers, FedProx and SCAFFOLD: rounds to FedAvg's accuracy."""
    for name in method or ():
        one_of("--method", name, tuple(METHODS))
    for name in dataset or ():
        one_of("--dataset", name, tuple(SETS))
    with resumable(out):
        sets = [name for name in SETS if name in (dataset or SETS)]
        chosen = server_learning(base, quick, sets, method or ())
        place = Place(data, out / "experiments")
        order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
        play(chosen.lasting(rounds), order, target_table)
