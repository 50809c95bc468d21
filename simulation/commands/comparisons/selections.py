"""`smidgen simulate selections`: policies of whom a round asks, where labels are few and skewed."""

from typing import Annotated

import typer

from simulation.commands.experiments import compares, one_of
from simulation.papers.learning.selections import POLICIES, early_table, selections
from simulation.papers.scenario import Scenario


@compares(early_table)
def selections_command(
    base: str,
    quick: bool,
    selection: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside random; repeat: {', '.join(POLICIES)}."),
    ] = None,
) -> Scenario:
    """Whom rounds ask where labels are few: policies beside random."""
    for name in selection or ():
        one_of("--selection", name, POLICIES)
    return selections(base, quick, selection or POLICIES)
