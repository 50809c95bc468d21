"""One child process, run to its end under a memory cap and sampled from outside.

    child = run_child(command, memory_limit_bytes=512 << 20, mapped_bytes=0, environment={})
    print(child.outcome, child.stepping.peak_anon_bytes, child.done["losses"])

`terminable` makes SIGTERM and SIGHUP act as Ctrl-C; `undisturbed` defers all three while a process
is being started, so that none is left without an owner.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

from profiling.instruments.memory_cap import CapReport, memory_cap
from profiling.instruments.sampler import Peaks, Sampler

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


Line = dict[str, Any]
DONE, KILLED_BY_CAP, STOOD_STILL = "done", "killed by the memory cap", "stood still"
LAST_WORDS = 400  # characters of stderr that are kept


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
    return rows[-1].strip()[:LAST_WORDS] if rows else ""
