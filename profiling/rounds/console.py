"""`smidgen coordinator status` and `figures`, answered again and again by one process.

The coordinator's store is its own; what it says of it, it says through its commands and their
JSON. A command of its own for each look would spend a second on imports, so one process stays and
runs the commands it is told.
"""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from edge_client.errors import Failed, WrongInput
from edge_client.wire.figures import Row
from profiling.rounds.costs import read_figures

END_S = 5.0
ANSWERER = """
import json, sys
import smidgen
for line in sys.stdin:
    try:
        smidgen.main(json.loads(line))
    except SystemExit as end:
        if end.code:
            raise
    sys.stdout.flush()
"""


class Console:
    """A process that answers for a store until its block ends.

    Args:
        store: The coordinator's folder.
        run: Name or id of a run, None for the newest.
    """

    def __init__(self, store: Path, run: str | None = None) -> None:
        self._words = ["--store", str(store), "--json", *([] if run is None else ["--run", run])]
        self._folder = TemporaryDirectory()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANSWERER],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a Ctrl-C in the terminal is for its owner
        )

    def __enter__(self) -> "Console":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._folder.cleanup()

    def status(self) -> dict[str, Any]:
        """What `smidgen coordinator status --json` says.

        Raises:
            WrongInput: There is no such store or run.
            Failed: The coordinator's command failed.
        """
        return self._ask("status")

    def figures(self) -> list[Row]:
        """The rows that `smidgen coordinator figures --out` writes; none before the first answer.

        Raises:
            WrongInput: See `status`.
            Failed: See `status`.
        """
        file = Path(self._folder.name) / "rounds.jsonl"
        return read_figures(file) if self._ask("figures", "--out", str(file))["rows"] else []

    def _ask(self, command: str, *more: str) -> dict[str, Any]:
        words = ["coordinator", command, *self._words, *more]
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, and has said why
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._refuse()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _refuse(self) -> None:
        assert self._process.stderr is not None
        said = (self._process.stderr.read().strip().splitlines() or ["it said nothing"])[-1]
        is_wrong = self._process.wait() == WrongInput.exit_code
        raise (WrongInput if is_wrong else Failed)(said.removeprefix("smidgen coordinator: "))
