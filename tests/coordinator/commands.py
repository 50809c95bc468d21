"""`smidgen coordinator` commands, run in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from coordinator.cli import app


@dataclass
class Done:
    """What a command said and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Done:
    """One command in this process, which spares its imports."""
    code, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app(args=arguments, prog_name="smidgen coordinator")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())
