"""Where time goes: seconds by phase, each second in one phase alone.

Deep code says what it does without knowing who listens:

    with phase("tokenize"):
        prompts = encoder.prompts(texts)

Without a clock that is nothing at all. With one, the seconds inside go to `tokenize` and not to the
phase around it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from edge_client.wire.reported.cost import Phase


class PhaseClock:
    """Wall-clock and processor seconds by phase.

    Law: the seconds of all phases add up to the time spent in the outermost ones.

    Args:
        on_outer: Told of an outermost phase when it is over.
    """

    def __init__(self, on_outer: Callable[[Phase], None] = lambda name: None) -> None:
        self.wall_s: dict[Phase, float] = {}
        self.cpu_s: dict[Phase, float] = {}
        self._on_outer = on_outer
        self._stack: list[Phase] = []
        self._since = 0.0, 0.0

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count what is spent inside, for this phase and not for the one around it."""
        self._settle()
        self._stack.append(name)
        token = _clock.set(self)
        try:
            yield
        finally:
            self._settle()
            self._stack.pop()
            _clock.reset(token)
            if not self._stack:
                self._on_outer(name)

    def _settle(self) -> None:
        """Give the time since the last change to the innermost phase."""
        now = time.perf_counter(), time.process_time()
        if self._stack:
            name = self._stack[-1]
            self.wall_s[name] = self.wall_s.get(name, 0.0) + now[0] - self._since[0]
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + now[1] - self._since[1]
        self._since = now


_clock: ContextVar[PhaseClock | None] = ContextVar("phase_clock", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Count what is spent inside for whoever measures here; nothing where nobody does."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    with clock.phase(name):
        yield
