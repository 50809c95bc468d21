"""`python -m benchmarks paper`: one table of a paper, or one of our comparisons."""

import json
import sys
from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.papers.grid import asked_of, one_of, read_file
from benchmarks.papers.pieces import FILES, SEEDS, piece_of
from benchmarks.papers.tables.traffic import traffic_table
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.commands.console import DeviceOption, JsonOption
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.tables import show
from smidgen.simulation.api import OUT
from smidgen.simulation.commands.experiments import (
    BaseOption,
    DataOption,
    JobsOption,
    OutOption,
    RayOption,
    resumable,
)
from smidgen.simulation.experiments.runner import Place
from smidgen.simulation.report.report import Order, play

TRAFFIC = "mfpt:traffic"  # counted: nothing is run
NAMES = (*(f"{file}:{name}" for file in FILES for name in read_file(file)[0]["scenarios"]), TRAFFIC)
SAID = "What its file lets one ask, such as dataset=mnli; repeat a name to choose several."
QuickOption = Annotated[bool, typer.Option("--quick", help="One seed, reduced: minutes.")]


def paper_command(
    table: Annotated[str, typer.Argument(metavar="PAPER:TABLE", help=", ".join(NAMES))],
    said: Annotated[list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help=SAID)] = None,
    base: BaseOption = EMBEDDED,
    data: DataOption = None,
    out: OutOption = OUT,
    seeds: Annotated[
        int, typer.Option(min=0, max=1000, help="From 0 on; 0: as many as its file says, or 3.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Of training; 0: as many as its file says.")
    ] = 0,
    jobs: JobsOption = 1,
    device: DeviceOption = CPU,
    ray: RayOption = "",
    quick: QuickOption = False,
    json_output: JsonOption = False,
) -> None:
    """One table of a paper beside ours, or one of our comparisons."""
    one_of("PAPER:TABLE", table, NAMES)
    if table == TRAFFIC:
        demand(
            not (said or seeds or rounds or quick),
            f"{table} is counted, not trained: it takes no NAME=VALUE, seeds or rounds",
        )
        counted, rows = traffic_table()
        show(counted, file=sys.stderr if json_output else sys.stdout)
        if json_output:
            print(json.dumps({"scenario": "mfpt traffic", "rows": rows}))
        return
    paper, _, name = table.partition(":")
    given, only = asked_of(paper, name, said or ())
    count = seeds or (1 if quick else read_file(paper)[0]["scenarios"][name].get("seeds", SEEDS))
    place = Place(data, out / "experiments", ray, device=device)
    with resumable(out):
        piece = piece_of(
            *(paper, name, place, {"quick" if quick else "whole", *map(str, given.values())}, only),
            base=base,
            **given,
        )
        lasting = piece.scenario.lasting(rounds)
        play(replace(piece, scenario=lasting), Order(range(count), place, jobs, out, json_output))
