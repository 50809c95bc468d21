"""Timeout for plugin calls.

    with calling_by(Limit(60.0).call):
        result = called("mean 'mine'", work)

Python cannot end a thread from outside, so each call runs in a thread of its own. A plugin that
misses its deadline is abandoned and not called again by this process, so abandoned threads do not
pile up. Time in which a call waits for one that it made does not count for it, so the plugin that
hangs is the one that is named. Without a limit, as in simulations, calls are plain calls.
"""

import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TypeVar, cast

from smidgen.coordinator.rounds.extensions import PluginError

T = TypeVar("T")
LIMIT_S = 60.0
LONGEST_S = 86_400.0
LOOK_S = 0.1  # between two looks at whether somebody ends the process
SAID_AFTER_S = 10.0
# Set while the code of this context waits for a call that it made.
_WAITS: ContextVar[threading.Event] = ContextVar("waits")


class LetGo(BaseException):
    """Nobody waits for the call any more, since the process ends; no error that `except` takes."""


class Limit:
    """How long each call may take; its `call` is for `calling_by`, from several threads at once.

    Args:
        seconds: For one call; 0: as long as it likes, but not when the process ends.
        tell: Told in one line of a call that takes long.
    """

    def __init__(
        self, seconds: float = LIMIT_S, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self._seconds, self._tell = seconds, tell
        self._left: dict[str, str] = {}  # what is not called again, and why
        self._ending = threading.Event()

    def end(self) -> None:
        """Let nobody wait any longer: the process ends."""
        self._ending.set()

    def call(self, called: str, work: Callable[[], T]) -> T:
        """What the work gives or raises.

        Args:
            called: What it is called where it does not return.
            work: The call.

        Raises:
            PluginError: It has not returned in time, now or before.
            LetGo: The process ends.
        """
        if why := self._left.get(called):
            raise PluginError(f"{why}; mend it and start the coordinator again")
        found: list[T] = []
        raised: list[BaseException] = []
        caller_waits, own_waits = _WAITS.get(threading.Event()), threading.Event()

        def run() -> None:
            _WAITS.set(own_waits)
            try:
                found.append(work())
            except BaseException as error:  # raised where the call was made
                raised.append(error)

        thread = threading.Thread(
            target=copy_context().run, args=(run,), name="extension", daemon=True
        )
        thread.start()
        caller_waits.set()
        try:
            self._wait(called, thread, own_waits)
        finally:
            caller_waits.clear()
        if raised:
            raise raised[0]
        return found[0]

    def _wait(self, called: str, thread: threading.Thread, waits: threading.Event) -> None:
        waited_s, looked_s, is_told = 0.0, time.monotonic(), False
        thread.join(LOOK_S)
        while thread.is_alive():
            now_s = time.monotonic()
            waited_s, looked_s = waited_s + (now_s - looked_s) * (not waits.is_set()), now_s
            if self._ending.is_set():
                raise LetGo
            if self._seconds and waited_s > self._seconds:
                at = _place(thread)
                self._left[called] = f"{called} did not return within {self._seconds:g} s{at}"
                raise PluginError(
                    f"{self._left[called]}; mend it, start the coordinator again and resume the "
                    "run (serve --plugin-limit gives more time)"
                )
            if waited_s > SAID_AFTER_S and not is_told:
                is_told = True
                self._tell(f"{called} has been at it for {SAID_AFTER_S:g} s{_place(thread)}")
            thread.join(LOOK_S)


def _place(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(cast(int, thread.ident))
    if frame is None:
        return ""
    return f" (now at {Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
