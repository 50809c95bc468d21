"""A virtual clock: one event loop is everybody's scheduler, and time passes only while all wait.

The coordinator's code runs as tasks of the loop. A client's loop is blocking code: it runs in a
greenlet, which gives the processor back where it sleeps or waits for its socket. One seed draws
all chances (jitter, keys, delays), so the same story happens again, step by step.

`installed` replaces the clock, the sleep and the source of secrets of this interpreter, before any
module of ours is imported: some take `time.monotonic` as a default.
"""

import asyncio
import random
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

LEAST_S = 1e-6  # less would be lost in rounding, and time stand still
START_S = 1_800_000_000.0  # Unix time at which every story begins
Parked = Callable[[float], None]


class Stuck(Exception):
    """Everybody waits, and nothing will ever come."""


class _Selector(selectors.SelectSelector):
    """Watches no file: a wait is the time that it takes."""

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        now.monotonic_s += max(timeout, LEAST_S) if timeout else 0.0
        return []


class Now:
    """What clocks say.

    Attributes:
        monotonic_s: Seconds that go forward, since the machine began.
        is_virtual: Whether a story is told; else the machine's own clocks answer.
        sleep: What a blocking sleep does.
        wall_s: How far whoever asks has set its wall clock.
    """

    def __init__(self) -> None:
        self.monotonic_s, self.is_virtual = 1000.0, False
        self.sleep: Parked = lambda _: None
        self.wall_s: Callable[[], float] = lambda: 0.0


now = Now()
chance = random.Random(0)  # of the network and the disks; clients draw from `random` itself


def begin(seed: int) -> asyncio.AbstractEventLoop:
    """Set all clocks and all chances for a story; its loop."""
    now.monotonic_s, now.is_virtual = 1000.0, True
    chance.seed(seed)
    random.seed(seed)
    return asyncio.SelectorEventLoop(_Selector())


def end() -> None:
    now.is_virtual = False
    now.sleep, now.wall_s = lambda _: None, lambda: 0.0


def installed() -> None:
    """Replace clock, sleep and the source of secrets; once, before anything of ours is imported."""
    assert not [name for name in sys.modules if name.split(".")[0] == "smidgen"]
    wall, sleep = time.time, time.sleep
    drawn = secrets.token_bytes

    def slept(seconds: float) -> None:
        (now.sleep if now.is_virtual else sleep)(seconds)

    def unix_s() -> float:
        return START_S + now.monotonic_s + now.wall_s() if now.is_virtual else wall()

    def random_bytes(size: int | None = None) -> bytes:
        return chance.randbytes(size or 32) if now.is_virtual else drawn(size)

    def ever_growing(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: now.monotonic_s if now.is_virtual else clock()

    grow = {name: getattr(time, name) for name in ("monotonic", "perf_counter", "process_time")}
    put(time, time=unix_s, sleep=slept, **{name: ever_growing(grow[name]) for name in grow})
    put(secrets, token_bytes=random_bytes)


def put(place: Any, **instead: Any) -> None:
    """Replace what a module or class has by these names."""
    for name, one in instead.items():
        setattr(place, name, one)


@contextmanager
def unseen() -> Iterator[None]:
    """What is done inside is nobody's in the story."""
    before, now.is_virtual = now.is_virtual, False
    try:
        yield
    finally:
        now.is_virtual = before


def of_greenlet(name: str) -> Any:
    """What was laid down for the code that runs now; None in the loop's own."""
    return getattr(getcurrent(), name, None)


class Blocking:
    """Blocking code as a part of the loop.

    Args:
        loop: The scheduler.
        work: The code.
        marks: What `of_greenlet` says inside.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], None], marks: Mapping[str, Any]
    ) -> None:
        self._loop, self._hub, self._ticket = loop, getcurrent(), 0
        self._greenlet = greenlet(work, self._hub)
        vars(self._greenlet).update(marks)
        loop.call_soon(self._greenlet.switch)

    def park(self, seconds: float | None) -> bool:
        """Give the processor back until `wake`, or so long; whether it was woken."""
        self._ticket += 1
        mine = self._ticket
        if seconds is not None:
            # Less than the loop tells apart would be no time at all, for ever.
            self._loop.call_later(max(seconds, LEAST_S), self._resume, mine, False)
        return bool(self._hub.switch())

    def wake(self) -> None:
        self._loop.call_soon(self._resume, self._ticket, True)

    def throw(self, error: BaseException) -> None:
        """Raise something where the code waits; it is over when this returns."""
        self._ticket += 1
        if not self._greenlet.dead:
            self._greenlet.throw(error)

    def _resume(self, ticket: int, is_woken: bool) -> None:
        if ticket == self._ticket and not self._greenlet.dead:
            self._ticket += 1
            self._greenlet.switch(is_woken)
