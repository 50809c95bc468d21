"""A demo's coordinator and clients as real processes on this machine, all ended on exit."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from profiling.instruments.child import Processes, running, terminable

LISTENING = r"listening on (https?://\S+)"


@dataclass(frozen=True)
class Fleet:
    """Running `smidgen` commands by name; make it with `fleet`.

    Attributes:
        own: Their processes.
        cores_each: Threads each client may compute with.
    """

    own: Processes
    cores_each: int

    @property
    def logs(self) -> Path:
        return self.own.logs

    @property
    def processes(self) -> "dict[str, subprocess.Popen[bytes]]":
        return self.own.running

    def start(self, name: str, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start `smidgen ARGUMENTS`; its output goes to `logs/NAME.log`."""
        limits = {"OMP_NUM_THREADS": str(self.cores_each)}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        return self.own.start(name, [sys.executable, "-m", "smidgen", *arguments], limits | quiet)

    def url_of(self, name: str, within_s: float = 60.0) -> str:
        """Wait until a coordinator listens, and say where.

        Raises:
            ProcessError: It or another ended first, or it took too long.
        """
        self.own.wait(lambda: bool(self.own.said(name, LISTENING)), within_s, f"{name} to listen")
        return self.own.said(name, LISTENING)[0]

    def check(self) -> None:
        """Raise if a process failed.

        Raises:
            ProcessError: Names the process and quotes the last line of its log.
        """
        self.own.check()

    def wait(self, tell: Callable[[], None] = lambda: None) -> None:
        """Wait until every process ended by itself.

        Args:
            tell: Called again and again meanwhile.

        Raises:
            ProcessError: One failed.
        """
        while not all(self.own.is_over(name) for name in self.processes):
            self.check()
            tell()
            time.sleep(0.1)
        self.check()


@contextmanager
def fleet(logs: Path, cores_each: int) -> Iterator[Fleet]:
    """Processes that live no longer than this block; SIGTERM ends it as Ctrl-C does."""
    with terminable(), running(logs) as processes:
        yield Fleet(processes, cores_each)
