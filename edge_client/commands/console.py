"""What the commands of `smidgen client` share: their options, and texts on a terminal.

What `client predict` and `client evaluate` share: a count on stderr, and rows of JSON.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from smidgen.edge_client.engine.opening import DEVICE_HELP, ENGINE_HELP

BaseOption = Annotated[
    str, typer.Option("--base", help="Base model: folder, GGUF file, hub name or `embedded`.")
]
EngineOption = Annotated[str, typer.Option("--engine", help=ENGINE_HELP)]
DeviceOption = Annotated[str, typer.Option("--device", help=DEVICE_HELP)]
BudgetOption = Annotated[
    str,
    typer.Option(
        "--memory-budget",
        help="Memory limit, such as 512M or 1.5G; auto: 60 % of what is available. With "
        "--device cuda, of the card's memory.",
    ),
]
DataOption = Annotated[
    Path, typer.Option("--data", help="Folder with labelled.csv, test.csv ..., or one file.")
]
TaskOption = Annotated[
    Path | None,
    typer.Option("--task", help="task.toml or a ready-made one; default: that in --data."),
]
TextColumnOption = Annotated[
    str,
    typer.Option(
        help="Column with the text, or two for pairs, `a,b`; default `text`. In CoNLL, the column "
        "of the words, by name or number."
    ),
]
LabelColumnOption = Annotated[
    str,
    typer.Option(
        help="Column with the label; default `label`. In CoNLL, the column of the tags, by name or "
        "number."
    ),
]
DelimiterOption = Annotated[
    str, typer.Option(help="Separator of CSV and TSV columns, such as ; or tab.")
]
EncodingOption = Annotated[
    str, typer.Option(help="Encoding of the text files, such as latin-1; default UTF-8.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on the last line of stdout.")
]


@contextmanager
def progress(is_shown: bool) -> Iterator[Callable[[], None]]:
    """A count of texts on stderr, where people look at it; call what is given after each."""
    columns = SpinnerColumn(), TextColumn("{task.completed} texts"), TimeElapsedColumn()
    is_off = not is_shown or not sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), disable=is_off, transient=True
    ) as counted:
        task = counted.add_task("texts", total=None)
        yield lambda: counted.advance(task)
