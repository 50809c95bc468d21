"""`smidgen` commands run in this process, through the front door that users take."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from smidgen import main


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
    code, out, err = 0, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
    return Done(code, out.getvalue(), err.getvalue())
