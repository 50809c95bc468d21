"""Options that several commands of `smidgen profile` have, and how they say where they are."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from smidgen.edge_client.engine.opening import DEVICE_HELP
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.outputs import check_out_file
from smidgen.profiling.instruments.environment import ISAS
from smidgen.profiling.records.record import Record, append, read_records

T = TypeVar("T")

BudgetOption = Annotated[
    str,
    typer.Option(
        "--memory-budget",
        help="Memory that smidgen's plan may take, such as 512M or 1.5G (powers of 1024); auto: "
        "60 % of what is available. With --device cuda: GPU memory.",
    ),
]
AdapterOption = Annotated[
    str, typer.Option("--adapter", help="Adapter: lora:8, lora:8@q,v, prompt:8 or bias.")
]
DeviceOption = Annotated[str, typer.Option("--device", help=DEVICE_HELP)]
TokensOption = Annotated[int, typer.Option("--tokens", help="Tokens per text.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Threads per process, 1 or more. Default: one per core."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed for texts and random weights.")]
IsaOption = Annotated[
    str,
    typer.Option("--isa", help=f"Limit torch to an older instruction set: {', '.join(ISAS)}."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]


def added_to(out: Path | None, name: str) -> Path | None:
    """The file of records in `--out`; one that holds anything else is refused."""
    path = None if out is None else out / name
    if path is not None:
        check_out_file("--out", path)
        if path.is_file():
            read_records(path)
    return path


def kept(
    runs: Iterable[T], path: Path | None, to_record: Callable[[T], Record]
) -> tuple[list[T], WrongInput | Failed | None]:
    """Runs up to the first that fails, each kept as soon as it is over, and why that one failed."""
    found: list[T] = []
    try:
        for run in runs:
            found.append(run)
            if path is not None:
                append(path, [to_record(run)])
    except (WrongInput, Failed) as error:
        return found, error  # told after what was measured
    return found, None


@contextmanager
def working(first: str) -> Iterator[Callable[[str], None]]:
    with Console(stderr=True).status(first) as status:
        yield status.update
