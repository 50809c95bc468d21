"""Long polls: every waiting device has its own bell, so news wakes only whom it concerns."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from coordinator.storage.store import Device


class Bells:
    """Bells of the devices that wait; used on one event loop only.

    Attributes:
        changed: Rung by a request that may let rounds proceed.
        is_stopping: No poll waits any more.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_stopping = False
        self._waiting: dict[Device, list[asyncio.Event]] = {}

    @contextmanager
    def bell(self, device: Device) -> Iterator[asyncio.Event]:
        """A bell of this device; take it before looking for work, or news may slip between."""
        bell = asyncio.Event()
        self._waiting.setdefault(device, []).append(bell)
        try:
            yield bell
        finally:
            self._waiting[device].remove(bell)
            if not self._waiting[device]:
                del self._waiting[device]

    def ring(self, devices: Iterable[Device]) -> None:
        """Wake these devices if they wait."""
        for device in devices:
            for bell in self._waiting.get(device, ()):
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
