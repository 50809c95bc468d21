"""Named processes, each with its descendants, all ended on exit.

Every process leads its own group and writes to its own log. Leaving the block in any way ends them
all: terminate the groups, wait, kill; where they are watched, descendants that left their group are
ended too.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from edge_client.errors import Failed
from profiling.instruments.child import Line, undisturbed
from profiling.instruments.sampler import ProcessTree, TreeUse

POLL_S = 0.02
END_S = 5.0  # what a process has for ending by itself
GONE_S = 1.0  # within which what was killed is gone
# The store of a coordinator that is started here lies where its command says, and not with an
# operator's fleet that the shell names.
OWN_STORE = {"SMIDGEN_DATABASE": "", "SMIDGEN_BLOBS": ""}


class ProcessError(Failed):
    """A process ended before its work was done, or never began it."""


class Processes:
    """Running processes; `running` makes it.

    Args:
        logs: Folder of their output.
        watched: Ends the watching of their trees.
        every_s: Pause between two samples of their trees; None for no watching.

    Attributes:
        logs: Folder of their output; a log is `NAME.log`.
        running: Those that were started, by name.
    """

    def __init__(self, logs: Path, watched: ExitStack, every_s: float | None) -> None:
        self.logs, self._watched, self._every_s = logs, watched, every_s
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._trees: dict[str, ProcessTree] = {}

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a process; a Ctrl-C in the terminal reaches its owner alone.

        Args:
            name: For its log and for messages.
            command: The program.
            environment: Set beside this process's own.
        """
        with self.log(name).open("ab") as log, undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **OWN_STORE, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )
            self.running[name] = process
        if self._every_s is not None:
            tree = ProcessTree(process.pid, self._every_s)
            self._trees[name] = self._watched.enter_context(tree)
        return process

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def lines(self, name: str) -> list[Line]:
        found = []
        for text in self.log(name).read_text(errors="replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                found += [line] if isinstance(line, dict) else []
        return found

    def said(self, name: str, pattern: str) -> list[str]:
        return re.findall(pattern, self.log(name).read_text(errors="replace"))

    def use(self, name: str) -> TreeUse:
        return self._trees[name].take()

    def wait(
        self, until: Callable[[], bool], within_s: float, what: str, every_s: float = POLL_S
    ) -> None:
        """Wait for something that the processes do.

        Args:
            until: Whether it is done.
            within_s: How long it may take.
            what: What is waited for, in words, such as `the server to listen`.
            every_s: Pause between two looks.

        Raises:
            ProcessError: It took too long, or a process failed.
        """
        end = time.monotonic() + within_s
        while not until():
            self.check()
            if time.monotonic() > end:
                raise ProcessError(f"waited {within_s:.0f} s for {what}; {self._last_words()}")
            time.sleep(every_s)

    def is_over(self, name: str) -> bool:
        return self.running[name].poll() is not None

    def check(self) -> None:
        """Raise if a process failed.

        Raises:
            ProcessError: Names it and quotes its last line.
        """
        for name, process in self.running.items():
            if process.poll() not in (None, 0):
                code = process.returncode
                raise ProcessError(f"{name} ended with code {code}: {self.last_line(name)}")

    def _last_words(self) -> str:
        return "; ".join(f"{name}: {self.last_line(name)}" for name in self.running)

    def last_line(self, name: str) -> str:
        rows = self.log(name).read_text(errors="replace").splitlines()
        told = [row.strip(" │") for row in rows if any(letter.isalnum() for letter in row)]
        return told[-1][:200] if told else "it said nothing"

    def stop(self) -> None:
        """End every process, with its group."""
        for process in self.running.values():
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + END_S
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        for process in self.running.values():
            _signal(process, signal.SIGKILL)  # what is left of its group, too
            process.wait()
        end = time.monotonic() + GONE_S
        while any(_is_left(process) for process in self.running.values()):
            if time.monotonic() > end:
                return  # nobody asks after it: it is a name alone
            time.sleep(0.01)


@contextmanager
def running(logs: Path, every_s: float | None = None) -> Iterator[Processes]:
    """Processes that live no longer than this block.

    Args:
        logs: Folder of their output; made.
        every_s: Watch each with all that it starts, with this pause between two samples.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as watched:
        started = Processes(logs, watched, every_s)
        try:
            yield started
        finally:
            started.stop()


def _is_left(process: "subprocess.Popen[bytes]") -> bool:
    """Whether anything of its group is there; a kill takes a moment."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
