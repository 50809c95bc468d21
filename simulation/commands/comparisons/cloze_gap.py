"""`smidgen simulate cloze-gap`: what it depends on how far cloze is ahead of a head."""

from typing import Annotated

import typer

from simulation.commands.experiments import compares, one_of
from simulation.papers.learning.cloze_gap import FACTORS, cloze_gap, gap_table
from simulation.papers.published.aug_fedprompt import LABELS
from simulation.papers.scenario import Scenario


@compares(gap_table)
def cloze_gap_command(
    base: str,
    quick: bool,
    dataset: Annotated[str, typer.Option(help=", ".join(LABELS))] = "ag_news",
    factor: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; repeat: {'; '.join(FACTORS)}.")
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="Another base, as a setting of its own; repeat.")
    ] = None,
) -> Scenario:
    """What makes cloze better than a head where labels are few: one thing at a time."""
    one_of("--dataset", dataset, tuple(LABELS))
    for name in factor or ():
        one_of("--factor", name, tuple(FACTORS))
    return cloze_gap(base, dataset, quick, factor or (), beside or ())
