"""`smidgen simulate mixed-ranks`: homes of three ranks, and what the mean of them is taken of."""

from simulation.commands.experiments import compares
from simulation.papers.learning.mixed_ranks import mixed_ranks, paired_table
from simulation.papers.scenario import Scenario


@compares(paired_table)
def mixed_ranks_command(base: str, quick: bool) -> Scenario:
    """Devices of ranks 4, 8 and 16 in one run: the exact mean, and others beside it."""
    return mixed_ranks(base, quick)
