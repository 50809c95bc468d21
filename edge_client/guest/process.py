"""The client's process: ending on a signal, messages to systemd, and memory released while idle.

SIGTERM or Ctrl-C raises `Ended` at once where the process only waits, even inside a long poll.
During work it sets a flag that `look` turns into `Ended`. In `cuttable` blocks, whose results
nobody has seen yet, work is cut `CUT_S` after the signal. Without `listening` none of this acts.

    with listening():                 # in the command, once
        with working():               # ends between two steps ...
            with cuttable():          # ... or, where a step takes long, inside one
                loss = backward(batch)
            look()

`tell("READY=1", "STATUS=waiting for work")` is sd_notify(3): it does nothing without NOTIFY_SOCKET
and ignores failures.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)
CUT_S = 4.0  # after the signal: a step that is over by then is whole
CLOSER_S = 0.2  # between two tries to cut
NAP_S = 0.5


class Ended(BaseException):
    """This process is to end; not an Exception, so that nobody who copes with failures stops it."""


class _Process:
    """What this process has been told, and what it does."""

    def __init__(self, cut_s: float = CUT_S) -> None:
        self._cut_s = cut_s
        self.asked: int | None = None  # the signal
        self.is_late = self.is_ending = False
        self.works = self.cuts = self.waits = 0  # blocks that it is in

    @property
    def may_be_left(self) -> bool:
        return not self.is_ending and (not self.works or self.waits > 0 or self.cuts > 0)

    def heard(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is not None:
            if number == signal.SIGINT:  # pressed twice: at once, as ever
                raise KeyboardInterrupt
            return
        self.asked = number
        is_at_once = self.waits or not self.works
        # What is raised here is lost where a finalizer or a library's callback runs: so once more.
        signal.signal(signal.SIGALRM, self.late)
        signal.setitimer(signal.ITIMER_REAL, 1.0 if is_at_once else self._cut_s, CLOSER_S)
        if is_at_once:
            raise Ended

    def late(self, _number: int, _frame: FrameType | None) -> None:
        self.is_late = True
        if self.may_be_left:
            raise Ended


_process = _Process()


@contextmanager
def listening(cut_s: float = CUT_S) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end what is done inside; in the main thread, which signals reach.

    Args:
        cut_s: How long after a signal a step may still take, above 0.
    """
    global _process
    is_heard = threading.current_thread() is threading.main_thread()
    if not is_heard or not hasattr(signal, "setitimer"):  # as on Windows
        yield
        return
    before, _process = _process, _Process(cut_s)
    own = _process
    alarm = signal.getsignal(signal.SIGALRM)
    tell_lost = sys.unraisablehook

    def lost(found: "sys.UnraisableHookArgs") -> None:
        """Of what a finalizer has swallowed, `Ended` is raised again, and is nobody's trouble."""
        if found.exc_type is not Ended:
            tell_lost(found)

    sys.unraisablehook = lost
    handlers = {number: signal.signal(number, own.heard) for number in ENDING}
    try:
        yield
    finally:
        sys.unraisablehook = tell_lost
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if own.asked is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, alarm)
        _process = before


def asked() -> int | None:
    """The signal that this process was told to end by; None: it goes on."""
    return _process.asked


def look() -> None:
    """Look whether to end.

    Raises:
        Ended: Yes; once, for what is left behind then is put in order undisturbed.
    """
    if _process.asked is not None and not _process.is_ending:
        _process.is_ending = True
        raise Ended


def settle() -> None:
    """`Ended` has arrived where all is put in order: it is not raised again."""
    _process.is_ending = True


@contextmanager
def working() -> Iterator[None]:
    """Be told to end by `look` alone, and at the block's end.

    Raises:
        Ended: The signal came inside.
    """
    _process.works += 1
    try:
        yield
    except Ended:
        settle()
        raise
    finally:
        _process.works -= 1
    look()


@contextmanager
def cuttable() -> Iterator[None]:
    """Do something that may be left anywhere: until it is over, nothing has changed.

    Raises:
        Ended: The signal came more than `CUT_S` ago.
    """
    _process.cuts += 1
    try:
        if _process.is_late:
            look()
        yield
    except Ended:
        settle()
        raise
    finally:
        _process.cuts -= 1


@contextmanager
def waiting() -> Iterator[None]:
    """Do something inside `working` of which nothing is kept: it may be left at once.

    Raises:
        Ended: This process is to end.
    """
    _process.waits += 1
    try:
        look()
        yield
    except Ended:
        settle()
        raise
    finally:
        _process.waits -= 1


def nap(seconds: float) -> None:
    """Sleep, unless this process is to end.

    Raises:
        Ended: It is.
    """
    end_s = time.monotonic() + seconds
    look()
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, NAP_S))
        look()


LEAST_S = 1.0  # between two signs of life
PATIENCE_S = 0.1  # with a manager that hangs
LONGEST = 300  # characters of a status


def tell(*fields: str) -> None:
    """Send `NAME=VALUE` fields, which may not hold line ends."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = "\0" + place[1:] if place[0] == "@" else place  # an abstract socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE_S)  # a manager that does not read stops nobody
        sender.connect(address)
        sender.sendall("\n".join(fields).encode())


def status(text: str) -> None:
    tell(f"STATUS={' '.join(text.split())[:LONGEST]}")


class WatchdogNotifier:
    """Signs of life, for a watchdog; given only where something was really done."""

    def __init__(self) -> None:
        self._told_s = -LEAST_S

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= LEAST_S:
            self._told_s = now_s
            tell("WATCHDOG=1")
