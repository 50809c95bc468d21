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
    str, typer.Option("--base", help="Folder, GGUF file, hub name, or `embedded`.")
]
EngineOption = Annotated[str, typer.Option("--engine", help=ENGINE_HELP)]
DeviceOption = Annotated[str, typer.Option("--device", help=DEVICE_HELP)]
BudgetOption = Annotated[
    str,
    typer.Option(
        "--memory-budget",
        help="Such as 512M or 1.5G; auto: 60 % of what is available now. With "
        "--device cuda, of the card's memory.",
    ),
]
DataOption = Annotated[
    Path, typer.Option("--data", help="Folder with labelled.csv, test.csv ..., or one file.")
]
TaskOption = Annotated[
    Path | None,
    typer.Option("--task", help="task.toml or a ready-made one; by default that in --data."),
]
TextColumnOption = Annotated[
    str,
    typer.Option(
        help="Column with the text, or two of a pair: `a,b`; by default `text`. Of CoNLL the "
        "words', by name or number."
    ),
]
LabelColumnOption = Annotated[
    str,
    typer.Option(
        help="Column with the label; `label` by default. Of CoNLL the tags', by name or number."
    ),
]
DelimiterOption = Annotated[
    str, typer.Option(help="Between the columns of CSV and TSV, such as ; or tab.")
]
EncodingOption = Annotated[
    str, typer.Option(help="Encoding of the texts' files, such as latin-1; UTF-8 by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line of stdout: one JSON object.")]


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
