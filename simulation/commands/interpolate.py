"""`smidgen simulate interpolate`: between the shared adapter and one's own, alpha by alpha."""

from simulation.commands.experiments import compares
from simulation.papers.fedp2eft.interpolate import alpha_table, interpolate
from simulation.papers.scenario import Scenario


@compares(alpha_table)
def interpolate_command(base: str, quick: bool) -> Scenario:
    """Each language's way from the shared adapter to its own, and how far it goes by itself."""
    return interpolate(base, quick)
