"""`smidgen simulate mixed-ranks`: homes of three ranks, and what the mean of them is taken of."""

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
    resumable,
)
from simulation.experiments.runner import Place
from simulation.papers.mixed_ranks import mixed_ranks, paired_table
from simulation.papers.report import Order, play


def mixed_ranks_command(
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    rounds: RoundsOption = 0,
    jobs: JobsOption = 1,
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """Devices of ranks 4, 8 and 16 in one run: the exact mean, and others beside it."""
    with resumable(out):
        place = Place(data, out / "experiments")
        order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
        play(mixed_ranks(base, quick).lasting(rounds), order, paired_table)
