"""Ctrl-C, SIGTERM and SIGHUP: taken as one, and held back where they would leave half a thing.

with terminable(), undisturbed():
    process = subprocess.Popen(...)
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def terminable() -> Iterator[None]:
    """Take SIGTERM, and SIGHUP of a terminal that is gone, as a Ctrl-C in here.

    So children are ended whoever ends this process. What is ignored stays so, as `nohup` has it.
    """
    with _taken(signal.default_int_handler):
        yield


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
