"""`smidgen simulate healthcare`: silos of nine languages that model texts and tag them."""

from typing import Annotated

import typer

from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import EMBEDDED
from edge_client.commands.console import DeviceOption
from edge_client.errors import demand
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
from simulation.experiments.experiment import FULL
from simulation.experiments.runner import Place
from simulation.papers.healthcare.pieces import NAMES, SEARCH, WHOLE, piece
from simulation.papers.report import Order, play


def healthcare_command(
    name: Annotated[str, typer.Argument(metavar="SCENARIO", help=", ".join(NAMES))],
    adapter: Annotated[
        str, typer.Option(help="What is trained: full (every weight), lora:8 ...; ner adds a head.")
    ] = WHOLE,
    is_search: Annotated[
        bool, typer.Option("--search", help="perplexity: dev perplexity by learning rate instead.")
    ] = False,
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
    """Silos of very unequal sizes: masked words together, in one place or alone; entities."""
    one_of("SCENARIO", name, NAMES)
    demand(not is_search or name == "perplexity", f"--search is for `perplexity`, not for {name}")
    if adapter not in FULL:
        parse_adapter(adapter)
    demand("+head" not in adapter, f"--adapter {adapter}: leave +head out; ner adds it by itself")
    with resumable(out):
        place = Place(data, out / "experiments", ray, device=device)
        order = Order(range(1 if quick or is_search else seeds), place, jobs, out, json_output)

        called = SEARCH if is_search else name
        made = piece(called, base, adapter, quick, place)
        play(made.scenario, order, made.more, made.drawn)
