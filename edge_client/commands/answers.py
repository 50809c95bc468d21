"""What `client predict` and `client evaluate` share: a count on stderr, and rows of JSON."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from edge_client.errors import demand


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


def check_other(out: Path | None, source: Path | None) -> None:
    """Refuse a file of answers that would replace what is read."""
    if out is not None and source is not None and source.exists() and out.exists():
        is_same = out.samefile(source)
        demand(not is_same, f"--out {out} is the file that is read; give another name")
