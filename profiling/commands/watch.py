"""`smidgen profile watch`: a run as it goes on."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from edge_client.tables import NARROW, Table, paragraph, render, terminal_width
from edge_client.wire.figures import Row
from profiling.rounds.bars import coloured
from profiling.rounds.console import Console
from profiling.rounds.live import news, screen

EVERY_S = 1.0
REST = 4  # times as long as a look took, so that watching takes a fifth of a core at most
Look = Callable[[dict[str, Any], Sequence[Row]], None]


def watch(
    store: Annotated[Path, typer.Option(help="Folder of the coordinator's store.")],
    run: Annotated[
        str | None, typer.Option(help="Run id or name; by default the newest run.")
    ] = None,
) -> None:
    """Watch a run until it is finished: its round, who has answered, where devices' time goes.

    On the coordinator's machine, beside `smidgen coordinator serve`. Ctrl-C ends the watching, not
    the run. In a pipe: a line for each thing that happens.
    """
    with Console(store, run) as console, _shown() as show:
        rows: list[Row] = []
        before: list[str] = []
        while True:
            start_s = time.monotonic()
            status = console.status()
            answered = [str(device["last"]) for device in status["devices"]]
            if answered != before:
                before, rows = answered, console.figures()
            show(status, rows)
            if status["phase"] == "finished":
                return
            time.sleep(max(EVERY_S, REST * (time.monotonic() - start_s)))


@contextmanager
def _shown() -> Iterator[Look]:
    width = terminal_width(sys.stdout)
    if width is None:
        yield _line_by_line()
        return
    terminal = Terminal(file=sys.stdout, width=width)
    is_coloured = terminal.color_system in ("256", "truecolor")

    def draw(status: dict[str, Any], rows: Sequence[Row]) -> None:
        now = terminal_width(sys.stdout) or NARROW
        text = coloured(drawn(screen(status, rows, time.time(), now), now))
        live.update(text if is_coloured else Text(text.plain), refresh=True)

    with Live(console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
        yield draw


def drawn(parts: Sequence[str | Table], width: int) -> str:
    said: list[str] = []
    for part in parts:
        said += paragraph(part, width) if isinstance(part, str) else ["", render(part, width)]
    return "\n".join(said)


def _line_by_line() -> Look:
    before: dict[str, Any] | None = None

    def tell(status: dict[str, Any], _rows: Sequence[Row]) -> None:
        nonlocal before
        for said in news(status, before):
            print(f"{time.strftime('%H:%M:%S')}  {said}", flush=True)
        before = status

    return tell
