"""A coordinator and its clients as real processes on this machine, and none left behind.

Every process gets its own log file. Leaving the `with` block, by whatever way, ends them all:
terminate, wait, kill.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from edge_client.errors import Failed

LISTENING = re.compile(r"listening on (http://\S+)")


class FleetError(Failed):
    """A process of the fleet ended before its work was done."""


@dataclass
class Fleet:
    """Running processes by name; make it with `fleet`.

    Attributes:
        logs: Folder of their log files.
        cores_each: Threads each client may compute with.
        processes: Processes that were started, by name.
    """

    logs: Path
    cores_each: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start `smidgen ARGUMENTS`; its output goes to `logs/NAME.log`."""
        limits = {"OMP_NUM_THREADS": str(self.cores_each)}
        quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with (self.logs / f"{name}.log").open("ab") as log, undisturbed():
            process = subprocess.Popen(
                [sys.executable, "-m", "smidgen", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **limits, **quiet},
                start_new_session=True,  # a Ctrl-C in the terminal reaches the fleet's owner alone
            )
            self.processes[name] = process
        return process

    def url_of(self, name: str, within_s: float = 60.0) -> str:
        """Wait until a coordinator listens, and say where.

        Raises:
            FleetError: It ended first, or took too long.
        """
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            self.check()
            if found := LISTENING.search((self.logs / f"{name}.log").read_text()):
                return found[1]
            time.sleep(0.05)
        raise FleetError(f"{name} does not listen after {within_s:.0f} s: {self.last_line(name)}")

    def check(self) -> None:
        """Raise if a process failed.

        Raises:
            FleetError: Names the process and quotes the last line of its log.
        """
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                raise FleetError(
                    f"{name} ended with code {process.returncode}: {self.last_line(name)}"
                )

    def wait(self, tell: Callable[[], None] = lambda: None) -> None:
        """Wait until every process ended by itself.

        Args:
            tell: Called again and again meanwhile.

        Raises:
            FleetError: One failed.
        """
        while any(process.poll() is None for process in self.processes.values()):
            self.check()
            tell()
            time.sleep(0.1)
        self.check()

    def last_line(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """End every process that still runs."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.terminate()
        end = time.monotonic() + 5.0
        for process in running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def fleet(logs: Path, cores_each: int) -> Iterator[Fleet]:
    """Processes that live no longer than this block; SIGTERM ends it as Ctrl-C does."""
    logs.mkdir(parents=True, exist_ok=True)
    started = Fleet(logs, cores_each)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield started
    finally:
        started.stop()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back: a process that is only half started would be nobody's."""
    held: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda came, _frame: held.append(came)) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
    if held:
        raise KeyboardInterrupt


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
