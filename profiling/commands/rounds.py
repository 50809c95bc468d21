"""`smidgen profile rounds`: what each round of a run gave and cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from edge_client.errors import demand
from edge_client.outputs import OutputError, check_out_file
from edge_client.tables import show
from profiling.commands.options import JsonOption
from profiling.rounds.costs import cost_by_round, read_figures
from profiling.rounds.picture import draw_rounds, file_title
from profiling.rounds.report import rounds_table

PICTURES = (".png", ".svg", ".pdf")


def rounds(
    figures: Annotated[
        Path, typer.Argument(help="File that `smidgen coordinator figures --out FILE` wrote.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Chart to write: a .png, .svg or .pdf file.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what each round of a run gave and cost."""
    if out is not None:
        check_out_file("--out", out, PICTURES)
        demand(out.parent.is_dir(), f"--out {out}: there is no folder {out.parent}", OutputError)
    costs = cost_by_round(read_figures(figures))
    if out is not None:
        draw_rounds(costs, out, file_title(figures, costs))
    if json_output:
        print(json.dumps({"rounds": [asdict(cost) for cost in costs]}))
    else:
        show(rounds_table(costs))
        if out is not None:
            print(f"written  {out}")
