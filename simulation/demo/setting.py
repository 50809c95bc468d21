"""A demo's settings, its progress, and its coordinator and clients as real processes."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.instruments.child import LISTENING, Processes, running, terminable

RUN, ALONE, SCORE = "together", "each alone", "scoring"  # its parts


@dataclass(frozen=True)
class Setting:
    """What a demo runs.

    Attributes:
        out: Folder for everything the demo writes.
        base: `embedded`, a folder or a hub name.
        adapter: Such as `lora:8`.
        rounds: Server steps.
        training: What every device does in a round, in a run and alone.
        seed: Root seed.
        engines: Dealt to the devices in turn.
        is_personal: Whether each device makes an adapter of its own after the run.
    """

    out: Path
    base: str
    adapter: str
    rounds: int
    training: Training
    seed: int
    engines: tuple[str, ...]
    is_personal: bool = False


@dataclass(frozen=True)
class Step:
    """How far a demo is.

    Attributes:
        stage: One of its parts, each of which has a bar of its own.
        doing: What happens in it now.
        done: How much of it is done.
        total: How much there is to do.
        unit: Of what.
    """

    stage: str
    doing: str
    done: int
    total: int
    unit: str = "rounds"


Progress = Callable[[Step], None]


def engine_by_name(setting: Setting, folders: Sequence[Path]) -> dict[str, str]:
    names = [folder.name for folder in folders]
    return dict(zip(names, cycle(setting.engines), strict=False))


def prompt_init(folders: Sequence[Path]) -> str:
    """What a soft prompt starts from: the words it has to choose among."""
    return " ".join([*read_task(folders[0] / "task.toml").words(), "message", ":"])


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
