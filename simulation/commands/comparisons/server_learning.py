"""`smidgen simulate server-learning`: server optimizers, FedProx and SCAFFOLD beside FedAvg."""

from typing import Annotated

import typer

from simulation.commands.experiments import compares, one_of
from simulation.papers.learning.server_learning import METHODS, SETS, server_learning, target_table
from simulation.papers.scenario import Scenario


@compares(target_table)
def server_learning_command(
    base: str,
    quick: bool,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside FedAvg; repeat: {', '.join(METHODS)}."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {', '.join(SETS)}.")
    ] = None,
) -> Scenario:
    """Server optimizers, FedProx and SCAFFOLD: rounds to FedAvg's accuracy."""
    for name in method or ():
        one_of("--method", name, tuple(METHODS))
    for name in dataset or ():
        one_of("--dataset", name, tuple(SETS))
    sets = [name for name in SETS if name in (dataset or SETS)]
    return server_learning(base, quick, sets, method or ())
