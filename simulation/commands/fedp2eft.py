"""`smidgen simulate fedp2eft`: languages that adapt for themselves, by ranks that they need."""

from typing import Annotated

import typer

from edge_client.bases.base import EMBEDDED
from edge_client.commands.console import DeviceOption
from edge_client.personal.way import Way
from edge_client.planning.cuda.accelerator import CPU
from simulation.api import OUT
from simulation.commands.experiments import (
    BaseOption,
    DataOption,
    JobsOption,
    JsonOption,
    OutOption,
    QuickOption,
    RayOption,
    SeedsOption,
    one_of,
    resumable,
)
from simulation.experiments.runner import Place
from simulation.papers.fedp2eft.scenarios import LR, NAMES, ROWS, scenario
from simulation.papers.ranks import ranks_table
from simulation.papers.report import Order, play

METHODS = f"Only this one beside LoRA; repeat: {', '.join(ROWS)}."


def fedp2eft_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(NAMES))],
    rank: Annotated[
        int, typer.Option(min=1, max=Way.bank, help="R: ranks kept are R x modules.")
    ] = Way.rank_budget,
    method: Annotated[list[str] | None, typer.Option(help=METHODS)] = None,
    lr: Annotated[
        float, typer.Option(min=1e-9, max=100, help="Learning rate of what each keeps, all alike.")
    ] = LR,
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: SeedsOption = 3,
    jobs: JobsOption = 1,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """An adapter of one's own for each language: which ranks, by a generator or without."""
    one_of("SCENARIO", name, NAMES)
    for one in method or ():
        one_of("--method", one, tuple(ROWS))
    with resumable(out):
        chosen = scenario(name, base, quick, rank, method or (), lr)
        place = Place(data, out / "experiments", ray, device=device)
        order = Order(range(1 if quick else seeds), place, jobs, out, json_output)
        play(chosen, order, ranks_table)
