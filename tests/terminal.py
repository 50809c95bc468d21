"""A terminal for tests: what a command says on a screen of so many columns."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

from smidgen import main


@contextmanager
def _screen(columns: int) -> "Iterator[tuple[int, list[str]]]":
    """A terminal's far end, and afterwards what was written on it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # Linux's way to say that nobody writes any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    said: list[str] = []
    try:
        yield theirs, said
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
        said.append(b"".join(parts).decode().replace("\r\n", "\n"))


def on_terminal(work: Callable[[], object], columns: int = 80) -> str:
    """What a piece of this process writes to stdout while stdout is a terminal."""
    with _screen(columns) as (theirs, said), os.fdopen(os.dup(theirs), "w") as file:
        _screened(work, file)
    return said[0]


def _screened(work: Callable[[], object], file: TextIO) -> None:
    with redirect_stdout(file):
        work()


def shown(*words: str, columns: int = 80) -> str:
    """What `smidgen WORDS` says on a terminal; in this process, which spares its imports."""

    def run() -> None:
        with suppress(SystemExit):
            main(words)

    return on_terminal(run, columns)


def typed(words: Sequence[str], columns: int = 80) -> str:
    """What `smidgen WORDS` says in a process of its own whose stdout is a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with _screen(columns) as (theirs, said):
        line = [sys.executable, "-m", "smidgen", *words]
        subprocess.run(line, stdout=theirs, stderr=subprocess.PIPE, env=environment, check=False)
    return said[0]
