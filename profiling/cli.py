"""`smidgen profile`: tables and charts of what was measured."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from profiling.report import draw_rounds, rounds_table
from profiling.rounds import FiguresError, cost_by_round, read_figures

app = typer.Typer(
    help="Tables and charts of what was measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def profile() -> None:
    """Tables and charts of what was measured."""


@app.command()
def rounds(
    figures: Annotated[Path, typer.Argument(help="rounds.jsonl of `smidgen coordinator figures`.")],
    out: Annotated[Path | None, typer.Option(help="PNG chart to write.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Rounds as JSON.")] = False,
) -> None:
    """Show what each round of a run gave and cost."""
    try:
        costs = cost_by_round(read_figures(figures))
    except FiguresError as error:
        print(f"smidgen profile: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    if out is not None:
        draw_rounds(costs, out, figures.stem)
    if json_output:
        print(json.dumps({"rounds": [asdict(cost) for cost in costs]}))
    else:
        Console().print(rounds_table(costs))
