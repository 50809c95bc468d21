"""`smidgen simulate traffic-accuracy`: updates in fewer bytes, and what that costs in accuracy."""

from typing import Annotated

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.errors import demand
from simulation.commands.experiments import compares, one_of
from simulation.papers.learning.traffic_accuracy import (
    CODECS,
    MORE_CODECS,
    traffic_accuracy,
    traffic_table,
)
from simulation.papers.scenario import Scenario


@compares(traffic_table, seeds=5)
def traffic_accuracy_command(
    base: str,
    quick: bool,
    codec: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this one beside float32; repeat: {', '.join(MORE_CODECS)}."),
    ] = None,
    down: Annotated[
        bool, typer.Option("--down", help="Each codec also on both ways: steps come down coded.")
    ] = False,
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="Beside lora:8 this one in each codec, both ways; repeat."),
    ] = None,
    language: Annotated[
        str, typer.Option(help="With --adapter: a language of MasakhaNEWS in AG News's place.")
    ] = "",
) -> Scenario:
    """Updates and steps as int8, int4 or their largest numbers: bytes and accuracy."""
    for name in codec or ():
        one_of("--codec", name, MORE_CODECS)
    for name in adapter or ():
        parse_adapter(name)
    demand(bool(adapter) or not language, "--language needs --adapter")
    return traffic_accuracy(base, quick, codec or CODECS, down, adapter or (), language)
