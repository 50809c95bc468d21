"""Long polls: every waiting device has its own bell, so news wakes only whom it concerns."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Bells:
    """Bells of the devices that wait; used on one event loop only.

    Attributes:
        changed: Rung by a request that may let rounds proceed.
        is_stopping: No poll waits any more.
        ticked_s: When rounds were last let proceed without an error, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_stopping = False
        self.ticked_s = time.monotonic()
        self._waiting: dict[str, list[asyncio.Event]] = {}

    @contextmanager
    def bell(self, device_id: str) -> Iterator[asyncio.Event]:
        """A bell of this device; take it before looking for work, or news may slip between."""
        bell = asyncio.Event()
        self._waiting.setdefault(device_id, []).append(bell)
        try:
            yield bell
        finally:
            self._waiting[device_id].remove(bell)
            if not self._waiting[device_id]:
                del self._waiting[device_id]

    def ring(self, device_ids: Iterable[str]) -> None:
        """Wake these devices if they wait."""
        for device_id in device_ids:
            for bell in self._waiting.get(device_id, ()):
                bell.set()

    def stop(self) -> None:
        """Let nobody wait any more."""
        self.is_stopping = True
        self.changed.set()
        self.ring(list(self._waiting))


async def heard(bell: asyncio.Event, wait_s: float) -> None:
    """Return when the bell rings or the time is over."""
    try:
        await asyncio.wait_for(bell.wait(), wait_s)
    except asyncio.TimeoutError:
        return
