"""Child processes: one under a memory cap, sampled; or several by name, all ended on exit.

    child = run_child(command, memory_limit_bytes=512 << 20, mapped_bytes=0, environment={})
    print(child.outcome, child.stepping.peak_anon_bytes, child.done["losses"])

`terminable` makes SIGTERM and SIGHUP act as Ctrl-C; `undisturbed` defers all three while a process
is being started, so that none is left without an owner.

Every process leads its own group and writes to its own log. Leaving the block in any way ends them
all: terminate the groups, wait, kill; where they are watched, descendants that left their group are
ended too. Where this process is killed, which leaves no block, Linux ends them (`ends_with`).
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any

from smidgen.edge_client.errors import Failed
from smidgen.profiling.instruments.memory_cap import CapReport, memory_cap
from smidgen.profiling.instruments.sampler import Peaks, ProcessTree, Sampler, TreeUse

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def terminable() -> AbstractContextManager[None]:
    """Take SIGTERM, and SIGHUP of a terminal that is gone, as a Ctrl-C in here.

    So children are ended whoever ends this process. What is ignored stays so, as `nohup` has it.
    """
    return _taken(signal.default_int_handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold them back: a process that is only half started would be nobody's.

    Raises:
        KeyboardInterrupt: At the end, if one came.
    """
    held: list[int] = []
    with _taken(lambda number, _frame: held.append(number)):
        yield
    if held:
        raise KeyboardInterrupt


@contextmanager
def _taken(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a handler have them, but what is ignored; threads beside the first one get none."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, other)


PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it


def ends_with(parent: int, number: signal.Signals) -> None:
    """Let this process end as the thread that started it does, however that ends; see prctl(2).

    Args:
        parent: The process of that thread.
        number: The signal that this process then gets.
    """
    if PRCTL is not None:
        PRCTL(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # it has ended before


Line = dict[str, Any]
DONE, KILLED_BY_CAP, STOOD_STILL = "done", "killed by the memory cap", "stood still"


@dataclass(frozen=True)
class Child:
    """What a child said and what was seen of it.

    Attributes:
        outcome: `done`, `killed by the memory cap`, `stood still` (what it needs was read again and
            again, until the time was up), or how it failed, in one line.
        lines: What it printed, in order.
        loading: Peaks up to its line `ready`.
        stepping: Peaks from there on.
        cap: What limited it.
    """

    outcome: str
    lines: list[Line] = field(repr=False)
    loading: Peaks
    stepping: Peaks
    cap: CapReport

    @property
    def done(self) -> Line:
        return next((line for line in self.lines if line["event"] == "done"), {})

    @property
    def refusal(self) -> Line | None:
        return next((line for line in self.lines if line["event"] == "refused"), None)


def silent(_line: Line) -> None: ...


def run_child(
    command: Sequence[str],
    memory_limit_bytes: int | None,
    mapped_bytes: int,
    environment: Mapping[str, str],
    listen: Callable[[Line], None] = silent,
    within_s: float | None = None,
) -> Child:
    """Run a child that prints one JSON object a line.

    Args:
        command: The program.
        memory_limit_bytes: Hard cap, or None for none.
        mapped_bytes: Size of the files it maps privately.
        environment: Set beside this process's own.
        listen: Called with each line as it comes.
        within_s: Seconds after which it is ended; None for no limit.
    """
    lines: list[Line] = []
    loading = stepping = Peaks()
    with memory_cap(memory_limit_bytes, mapped_bytes) as cap, tempfile.TemporaryFile() as errors:
        process: subprocess.Popen[str] | None = None
        try:
            with undisturbed():
                process = subprocess.Popen(
                    cap.around(command),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=os.environ | environment,
                    preexec_fn=partial(ends_with, os.getpid(), signal.SIGKILL),
                )
            with Sampler(process.pid) as sampler, _ended(process, within_s) as is_late:
                for line in _objects(process):
                    if line["event"] == "ready":
                        loading = sampler.take()
                    lines.append(line)
                    listen(line)
                process.wait()
                stepping = sampler.take()
        finally:
            if process is not None:  # an interrupted benchmark leaves nobody behind
                process.kill()
                with process:  # closes its pipe, and waits for its end
                    pass
        report = cap.report()
        outcome = _outcome(process.returncode, lines, report, _last_words(errors))
        if is_late.is_set() and outcome != DONE:
            outcome = STOOD_STILL
    return Child(outcome, lines, loading, stepping, report)


@contextmanager
def _ended(process: "subprocess.Popen[str]", within_s: float | None) -> Iterator[threading.Event]:
    """Kill a process that takes longer than it may; set where that was done."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(within_s or 0.0, end)
    timer.daemon = True
    if within_s is not None:
        timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def _objects(process: "subprocess.Popen[str]") -> Iterator[Line]:
    assert process.stdout is not None
    with process.stdout as stream:
        for text in stream:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a library's own chatter
            if isinstance(line, dict) and "event" in line:
                yield line


def _outcome(code: int, lines: Sequence[Line], cap: CapReport, last_words: str) -> str:
    if code == 0 and any(line["event"] == "done" for line in lines):
        return DONE
    if code == -signal.SIGKILL:
        # Kernels before 4.13 do not count kills; there a charge that reached the limit tells.
        uncounted = cap.oom_kills is None and cap.peak_bytes is not None
        is_by_cap = cap.peak_bytes == cap.limit_bytes if uncounted else bool(cap.oom_kills)
        return KILLED_BY_CAP if is_by_cap else "killed from outside (SIGKILL)"
    return f"failed with exit code {code}: {last_words or 'it said nothing'}"


def _last_words(errors: IO[bytes]) -> str:
    errors.seek(0)
    rows = errors.read().decode(errors="replace").strip().splitlines()
    return rows[-1].strip()[:400] if rows else ""  # characters of stderr that are kept


POLL_S = 0.02
END_S = 5.0  # what a process has for ending by itself
GONE_S = 1.0  # within which what was killed is gone
LISTENING = r"listening on (https?://\S+)"  # what a coordinator says
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
                preexec_fn=partial(ends_with, os.getpid(), signal.SIGTERM),
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
