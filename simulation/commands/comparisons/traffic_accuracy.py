"""`smidgen simulate traffic-accuracy`: updates in fewer bytes, and what that costs in accuracy."""

from typing import Annotated

import typer

from simulation.commands.experiments import compares, one_of
from simulation.papers.learning.traffic_accuracy import CODECS, traffic_accuracy, traffic_table
from simulation.papers.scenario import Scenario


@compares(traffic_table, seeds=5)
def traffic_accuracy_command(
    base: str,
    quick: bool,
    codec: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside float32; repeat: {', '.join(CODECS)}."),
    ] = None,
    down: Annotated[
        bool, typer.Option("--down", help="Each codec also on both ways: steps come down coded.")
    ] = False,
) -> Scenario:
    """Updates and steps as int8, int4 or their largest numbers: bytes and accuracy."""
    for name in codec or ():
        one_of("--codec", name, CODECS)
    return traffic_accuracy(base, quick, codec or CODECS, down)
