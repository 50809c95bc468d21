"""Options that several commands of `smidgen profile` have, and how they say where they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from edge_client.engine.devices import DEVICE_HELP
from profiling.instruments.isa import ISAS

BudgetOption = Annotated[
    str,
    typer.Option(
        "--memory-budget",
        help="Memory that our plan may take, such as 512M or 1.5G (steps of 1024); auto: 60 % of "
        "what is available. With --device cuda, of the card's memory.",
    ),
]
AdapterOption = Annotated[
    str, typer.Option("--adapter", help="What is trained: lora:8, lora:8@q,v, prompt:8 or bias.")
]
DeviceOption = Annotated[str, typer.Option("--device", help=DEVICE_HELP)]
TokensOption = Annotated[int, typer.Option("--tokens", help="Length of each text in tokens.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Threads of every process, 1 or more; by default one per core."),
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Seed of texts and random weights; equal seeds, equal texts.")
]
IsaOption = Annotated[
    str,
    typer.Option(
        "--isa", help=f"Hold torch to an older processor's instructions: {', '.join(ISAS)}."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")
]


@contextmanager
def working(first: str) -> Iterator[Callable[[str], None]]:
    with Console(stderr=True).status(first) as status:
        yield status.update
