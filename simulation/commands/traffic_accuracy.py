"""`smidgen simulate traffic-accuracy`: updates in fewer bytes, and what that costs in accuracy."""

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
from simulation.papers.updates.traffic_accuracy import CODECS, traffic_accuracy, traffic_table


def traffic_accuracy_command(
    codec: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside float32; repeat: {', '.join(CODECS)}."),
    ] = None,
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 5,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Updates as int8, int4 or their largest numbers: bytes and accuracy."""
    for name in codec or ():
        one_of("--codec", name, CODECS)
    with resumable(out):
        place = Place(data, out / "experiments")
        order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
        play(traffic_accuracy(base, quick, codec or CODECS).lasting(rounds), order, traffic_table)
