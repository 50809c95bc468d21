"""`smidgen` commands run in this process, through the front door that users take.

`smidgen` gives what a command says in a pipe, `shown` what it says on a terminal.
"""

import fcntl
import io
import os
import pty
import pwd
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import NoReturn, TextIO

import pytest

from smidgen import main, run_app


@dataclass(frozen=True)
class Done:
    """What a command said, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def smidgen(*arguments: str) -> Done:
    """One command in this process, which spares its imports."""
    return _done(lambda: main(arguments))


def benchmarks(*arguments: str) -> Done:
    """One command of `python -m benchmarks`, likewise."""
    return _done(lambda: run_app("python -m benchmarks", "benchmarks.cli", "simulate", arguments))


def _done(work: Callable[[], None]) -> Done:
    code, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            work()
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
    return Done(code, out.getvalue(), err.getvalue())


@contextmanager
def homeless() -> Iterator[None]:
    """As a user whom the system does not know, with no HOME: so a service or a container runs."""

    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOME", raising=False)
        patch.setattr(pwd, "getpwuid", unknown)
        yield


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
    told = os.environ.pop("COLUMNS", None)
    try:
        with _screen(columns) as (theirs, said), os.fdopen(os.dup(theirs), "w") as file:
            _screened(work, file)
    finally:
        os.environ |= {} if told is None else {"COLUMNS": told}
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
