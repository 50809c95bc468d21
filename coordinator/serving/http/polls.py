"""Long polls: every waiting device has its own event, so news wakes only those it concerns.

A thousand devices woken at once would all send requests at once and wait for each other. So they
are woken one after another, as fast as the requests in progress allow.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

AT_ONCE = 12  # requests that are under way: with more, nobody is called
BETWEEN_S = 0.004  # two calls: until a device that was called asks for more
POLLS = 2  # of one device that wait at a time: a connection that was cut may still look alive
MOST_LATE_S = 20.0  # whom news waits for stays in line beyond its time; clients allow for 30 s


class Bells:
    """Bells of the devices that wait; used on one event loop only.

    Attributes:
        changed: Rung by a request that may let rounds proceed.
        is_leaving: This process ends soon; whoever asks it is served until then.
        is_stopping: No poll waits any more.
        ticked_s: When rounds were last let proceed without an error, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_leaving = self.is_stopping = False
        self.ticked_s = time.monotonic()
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._rung: dict[asyncio.Event, None] = {}  # in the order in which they are called
        self._called: set[asyncio.Event] = set()  # of those, who counts as under way by its call
        self._under_way = 0
        self._news = asyncio.Event()

    @contextmanager
    def bell(self, device_id: str, most: int | None = None) -> Iterator[asyncio.Event]:
        """A bell of this device; take it before looking for work, or news may slip between.

        Args:
            device_id: Whose.
            most: Of one device; those that wait for the longest are called instead of this one.
        """
        bell = asyncio.Event()
        own = self._waiting.setdefault(device_id, [])
        for older in own[: max(0, len(own) + 1 - most)] if most is not None else ():
            older.set()
        own.append(bell)
        try:
            yield bell
        finally:
            self._rung.pop(bell, None)
            if bell in self._called:  # it was called before it waited
                self._called.remove(bell)
                self._under_way -= 1
            self._waiting[device_id].remove(bell)
            if not self._waiting[device_id]:
                del self._waiting[device_id]

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is under way: those that wait are called later."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._news.set()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A request that is under way waits for the other side: nothing is done for it."""
        self._under_way -= 1
        self._news.set()
        try:
            yield
        finally:
            self._under_way += 1

    async def heard(self, bell: asyncio.Event, wait_s: float) -> None:
        """Return when it is this device's turn to hear news, or the time is over.

        Whoever waits is not under way. Whose time is over while it stands in line keeps its place:
        a crowd that is called would be overtaken by all whose polls run out.
        """
        self._under_way -= 1
        self._news.set()
        try:
            await heard(bell, wait_s)
            if bell in self._rung and not bell.is_set():
                await heard(bell, MOST_LATE_S)
        finally:
            if bell in self._called:
                self._called.remove(bell)
            else:
                self._under_way += 1

    def ring(self, device_ids: Iterable[str]) -> None:
        """Have these devices called if they wait, each at its turn."""
        for device_id in device_ids:
            self._rung.update(dict.fromkeys(self._waiting.get(device_id, ())))
        self._news.set()

    def ring_now(self, name: str) -> None:
        for bell in self._waiting.get(name, ()):
            bell.set()

    async def call(self) -> None:
        """Call those whose bell was rung, each when there is room, until all is to stop."""
        while not self.is_stopping:
            self._news.clear()
            while self._rung and self._under_way < AT_ONCE and not self.is_stopping:
                bell = next(iter(self._rung))
                del self._rung[bell]
                if bell not in self._called:
                    self._called.add(bell)
                    self._under_way += 1
                bell.set()
                await asyncio.sleep(BETWEEN_S)
            await self._news.wait()

    def stop(self) -> None:
        """Let nobody wait any more."""
        self.is_stopping = True
        self.changed.set()
        self._news.set()
        for bells in self._waiting.values():
            for bell in bells:
                bell.set()


class UnderWay:
    """The application, of whose requests is known how many are under way.

    One whose body is still to come, or whose answer is still to be read, is not: a dozen senders
    who say nothing more would keep the news from everybody.

    Args:
        app: The application.
        bells: Are told.
        prefixes: Of the paths that count.
    """

    def __init__(self, app: ASGIApp, bells: Bells, prefixes: tuple[str, ...]) -> None:
        self._app, self._bells, self._prefixes = app, bells, prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        is_here = False  # all of the body

        async def received() -> Message:
            nonlocal is_here
            if is_here:  # it waits for the end of the connection, beside its work
                return await receive()
            with self._bells.aside():
                message = await receive()
            is_here = not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            with self._bells.aside():
                await send(message)

        with self._bells.request():
            await self._app(scope, received, sent)


async def heard(event: asyncio.Event, wait_s: float) -> None:
    """Return when the event is set or the time is over."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), wait_s)
