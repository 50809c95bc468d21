"""Bodies of requests and answers: resumable uploads, files by hash and range, what is not read.

An upload streams to a file beside the blobs and is hashed on the way.

Each piece of work has one upload: a different body replaces it, and of two requests that send the
same body the later resumes where the earlier was. An interrupted upload is kept for an hour. Used
on one event loop; files are touched in threads.

    HEAD ...  Repr-Digest                -> Upload-Offset, or Upload-Complete: ?1
    PUT ...   Repr-Digest                   the whole body
    PUT ...   Repr-Digest, Content-Range    what is missing: `bytes 10-99/100`, or `bytes */100`
"""

import asyncio
import hashlib
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from anyio import fail_after
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.handlers import DRAIN_BYTES, FULL_AGAIN_S, LINGER_S, NO_ROOM
from smidgen.coordinator.storage.blobs import Partial
from smidgen.edge_client.wire.messages import Receipt
from smidgen.edge_client.wire.tensors import digest_header

SILENCE_S = 60.0  # in which a body must go on


def span_of(content_range: str | None) -> tuple[int, float]:
    """Where the bytes that are sent begin, and how many the whole has; of a whole nobody says.

    Raises:
        Refusal: 400, they do not go to the end.
    """
    if content_range is None:
        return 0, math.inf
    found = re.fullmatch(r"bytes (?:(\d{1,15})-(\d{1,15})|\*)/(\d{1,15})", content_range.strip())
    if found is None or (found[1] and not int(found[1]) <= int(found[2]) == int(found[3]) - 1):
        raise Refusal(400, "Content-Range: `bytes FIRST-LAST/ALL` up to the end, or `bytes */ALL`")
    return int(found[1] or found[3]), int(found[3])


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """A body as it comes.

    Raises:
        Refusal: 408, nothing has come for a while.
        ClientDisconnect: It was cut.
    """
    stream = request.stream()
    while True:
        try:
            with fail_after(SILENCE_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Refusal(
                408, f"nothing of the body came for {SILENCE_S:g} s; what has arrived is kept"
            ) from error
        yield piece


async def drain(pieces: AsyncIterator[bytes]) -> None:
    """Read on for a moment where a body was not wanted, so that its sender gets to read why."""
    length = 0
    with suppress(Refusal, ClientDisconnect, TimeoutError):
        with fail_after(LINGER_S):
            async for piece in pieces:
                length += len(piece)
                if length > DRAIN_BYTES:
                    return


def headers_of(name: str) -> dict[str, str]:
    told = {"ETag": f'"{name}"', "Repr-Digest": digest_header(name)}
    return {**told, "Cache-Control": "immutable"}


def past_the_end(wanted: str | None, size: int, headers: Mapping[str, str]) -> Response | None:
    """The answer to a `Range` that begins behind a file's last byte; None: it does not.

    Raises:
        Refusal: 400, it is not one part of a file.
    """
    if wanted is None or first_of(wanted) < size:
        return None
    detail = {"detail": f"the file has {size} bytes"}
    return JSONResponse(detail, 416, {**headers, "Content-Range": f"bytes */{size}"})


def first_of(header: str) -> int:
    """Where the part begins that a `Range` asks for."""
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", header)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise Refusal(400, "Range: `bytes=FIRST-` or `bytes=FIRST-LAST` is expected")
    return int(found[1])


PIECE_BYTES = 64 << 10  # gathered before a thread writes them: at most this is held of a body
AT_ONCE = 4  # whole bodies that are in memory while they are looked at
GRACE_S = 0.5  # in which a connection that was cut is noticed
OLDEST_S = 3600.0  # that a part of a body is kept without another byte
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judge:
    """What decides on the uploads of one device for one piece of work; called in threads.

    Attributes:
        most_bytes: How long a body may be.
        known: By a body's SHA-256, the receipt of one that need not be sent; None if it must.
        accept: Takes a whole body by its file and its SHA-256: durable before it returns. The file
            may be gone then.
        heard: Told when something of it has come; on the event loop.
    """

    most_bytes: int
    known: Callable[[str], Receipt | None]
    accept: Callable[[Path, str], Receipt]
    heard: Callable[[], object] = lambda: None


@dataclass
class _Place:
    """Where the body of one piece of work arrives.

    Attributes:
        lock: Held while the file is touched.
        partial: What has arrived; None for nothing.
        is_read: Whether `partial` knows what an earlier process left in its file.
        turn: Which request may write; an earlier one may not any more.
        quiet: Rung when the last one that may have written is over.
        writers: Those that send a body.
        users: Requests that are under way, `writers` among them.
        is_asked: Whether somebody asks how much is here.
        touched_s: When something last arrived, monotonic.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    partial: Partial | None = None
    is_read: bool = True
    turn: int = 0
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    writers: int = 0
    users: int = 0
    is_asked: bool = False
    touched_s: float = field(default_factory=time.monotonic)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.writers += 1
        self.quiet.clear()
        try:
            yield
        finally:
            self.writers -= 1
            if not self.writers:
                self.quiet.set()


class Uploads:
    """What has arrived of updates that are not whole yet.

    Args:
        folder: Where their files lie, on the blobs' disk; made. What is too old goes at once.
        aside: Entered while a request only waits for another one: nothing is done for it.
    """

    def __init__(
        self, folder: Path, aside: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._folder, self._aside = folder, aside
        self._places: dict[str, _Place] = {}
        self._judging, self._filled = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
        self._swept_s = time.monotonic()
        folder.mkdir(mode=0o700, exist_ok=True)
        found = sorted(folder.iterdir(), key=_modified_s, reverse=True)
        # While no coordinator ran nothing grew old, whatever the clock did meanwhile.
        newest_s = _modified_s(found[0]) if found else 0.0
        for path in found:
            stem, _, name = path.name.partition(".")
            is_old = newest_s - _modified_s(path) > OLDEST_S
            if is_old or not name or stem in self._places:
                path.unlink()
            else:
                self._places[stem] = _Place(partial=Partial(path, name), is_read=False)

    async def arrived(self, work_id: str, name: str, judge: Judge) -> int | None:
        """How much of a body is here; None where nothing more of it is wanted.

        Whoever asks goes on from there: a request that is under way gets a moment to put down what
        has come of a connection that was cut, and may write no more after that.

        Raises:
            Refusal: 429, somebody asks the same already.
        """
        with self._place(work_id) as place, _asking(place):
            if place.writers:
                with self._aside(), suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(place.quiet.wait(), GRACE_S)
            async with self._locked(place):
                place.turn += 1
                if await run_in_threadpool(judge.known, name) is not None:
                    return None
                return await run_in_threadpool(_size, place, name)

    async def take(
        self, request: Request, work_id: str, name: str, content_range: str | None, judge: Judge
    ) -> Receipt | int:
        """Take a body, or the rest of one.

        Args:
            request: Its body is read here.
            work_id: The work that it answers.
            name: SHA-256 of the whole.
            content_range: Which part is sent; None for the whole.
            judge: Decides.

        Returns:
            Its receipt; or, where another part is wanted, from where on.

        Raises:
            Refusal: 400 damaged on the way, 408 it does not go on, 413 too long, 507 the disk is
                full; what the judge says.
            ClientDisconnect: It was cut; what has come is kept.
        """
        pieces = pieces_of(request)
        try:
            taken = await self._take(pieces, work_id, name, content_range, judge)
        except Refusal:
            await drain(pieces)
            raise
        await drain(pieces)
        return taken

    async def _take(
        self,
        pieces: AsyncIterator[bytes],
        work_id: str,
        name: str,
        content_range: str | None,
        judge: Judge,
    ) -> Receipt | int:
        first, whole = span_of(content_range)
        with self._place(work_id) as place, place.writing():
            async with self._locked(place):
                place.turn += 1
                turn = place.turn
                begin = partial(self._begin, place, work_id, name, (first, whole), judge)
                if (wanted := await run_in_threadpool(begin)) is not None:
                    return wanted
            is_ours = await self._stream(pieces, place, turn, judge)
            async with self._locked(place):
                if not is_ours or place.turn != turn or place.partial is None:
                    return place.partial.size if place.partial else 0
                return await self._finish(place, place.partial, judge)

    @asynccontextmanager
    async def _locked(self, place: _Place) -> AsyncIterator[None]:
        with self._aside():
            await place.lock.acquire()
        try:
            yield
        finally:
            place.lock.release()

    @contextmanager
    def _place(self, work_id: str) -> Iterator[_Place]:
        self._sweep()
        stem = _stem(work_id)
        place = self._places.setdefault(stem, _Place())
        place.users += 1
        try:
            yield place
        finally:
            place.users -= 1
            if not place.users and place.partial is None:
                del self._places[stem]

    def _begin(
        self, place: _Place, work_id: str, name: str, span: tuple[int, float], judge: Judge
    ) -> Receipt | int | None:
        """Make ready for a body or its rest; what to answer where nothing of it is wanted."""
        if (receipt := judge.known(name)) is not None:
            return receipt
        first, whole = span
        with _room(place):
            size = _size(place, name)
            if first not in (0, size) and not first == whole <= size:
                return size
            if first < whole:
                self._prepare(place, work_id, name, first)
        if place.partial is None or place.partial.name != name:
            return 0  # nothing is sent, and what is here is another body's
        return None

    def _prepare(self, place: _Place, work_id: str, name: str, first: int) -> None:
        if place.partial is None or place.partial.name != name:
            if place.partial is not None:
                place.partial.discard()
            place.partial = Partial(self._folder / f"{_stem(work_id)}.{name}", name)
            place.is_read = True
        if first == 0:
            place.partial.restart()
            place.is_read = True

    async def _stream(
        self, pieces: AsyncIterator[bytes], place: _Place, turn: int, judge: Judge
    ) -> bool:
        """Write a body as it comes; False where a later request has taken over."""
        gathered = bytearray()
        try:
            async for piece in pieces:
                gathered += piece
                if len(gathered) >= PIECE_BYTES:
                    if not await self._write(place, turn, gathered, judge):
                        return False
                    gathered = bytearray()
        except (ClientDisconnect, Refusal):
            await self._write(place, turn, gathered, judge)  # so much less is sent again
            raise
        return await self._write(place, turn, gathered, judge)

    async def _write(self, place: _Place, turn: int, piece: bytearray, judge: Judge) -> bool:
        async with self._locked(place):
            if place.turn != turn or place.partial is None:
                return False
            if place.partial.size + len(piece) > judge.most_bytes:
                place.partial.discard()
                place.partial = None
                raise Refusal(413, f"the body is over {judge.most_bytes} bytes")
            place.touched_s = time.monotonic()
            judge.heard()
            await self._put_down(place, place.partial, piece)
            return True

    async def _put_down(self, place: _Place, partial: Partial, piece: bytearray) -> None:
        """Write; on a full disk bodies try again in turn, and each that fails makes room."""
        before = partial.size
        with _room(place):
            try:
                await run_in_threadpool(partial.write, piece)
                return
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
        async with self._filled:
            with _room(place):
                await run_in_threadpool(partial.write, piece[partial.size - before :])

    async def _finish(self, place: _Place, partial: Partial, judge: Judge) -> Receipt:
        try:
            if not partial.is_whole():
                raise Refusal(
                    400,
                    f"the {partial.size} bytes that arrived are not those that Repr-Digest tells; "
                    "send the whole update again",
                )
            with _room(place):
                async with self._judging:
                    return await run_in_threadpool(judge.accept, partial.path, partial.name)
        finally:
            place.partial = None
            await run_in_threadpool(partial.discard)

    def _sweep(self) -> None:
        """Forget what has been waiting for too long; looks once in a while."""
        now_s = time.monotonic()
        if now_s - self._swept_s < OLDEST_S / 60:
            return
        self._swept_s = now_s
        for stem, place in list(self._places.items()):
            if not place.users and now_s - place.touched_s > OLDEST_S:
                if place.partial is not None:
                    place.partial.discard()
                del self._places[stem]


@contextmanager
def _asking(place: _Place) -> Iterator[None]:
    if place.is_asked:
        raise Refusal(429, "another request asks the same; try again", 1)
    place.is_asked = True
    try:
        yield
    finally:
        place.is_asked = False


def _modified_s(path: Path) -> float:
    return path.stat().st_mtime


def _stem(work_id: str) -> str:
    """Names the files of a piece of work: ids are others' words."""
    return hashlib.sha256(work_id.encode()).hexdigest()[:32]


def _size(place: _Place, name: str) -> int:
    """How much of a body is there; reads what an earlier process left."""
    if place.partial is None or place.partial.name != name:
        return 0
    if not place.is_read:
        place.is_read = True
        try:
            place.partial.resume()
        except OSError as error:
            LOG.warning("an upload begins again: %s", error)
            place.partial = None
            return 0
    return place.partial.size


@contextmanager
def _room(place: _Place) -> Iterator[None]:
    """A full disk refuses: what has come of this body makes room for another one's end."""
    try:
        yield
    except OSError as error:
        if place.partial is not None:
            with suppress(OSError):
                place.partial.discard()
            place.partial = None
        if error.errno not in NO_ROOM:
            raise
        LOG.error("no room for updates: %s", error)
        raise Refusal(507, "the coordinator's disk is full; try again", FULL_AGAIN_S) from error
