"""Pack downloads: one at a time, file by file, piece by piece, from any available source.

    fetch = Fetch(shelf, base_id, pack, sources)
    while (base := fetch.go_on(time.monotonic() + 5)) is None: ...

Data that arrived survives a kill and is hashed again before more is appended. Each file is checked
by its announced SHA-256 and the manifest by the run's base id, and only a complete pack gets its
final name, so no source has to be trusted: a wrong file is fetched again, once from the same source
if its beginning came from another, then from the next. A slow source is left for the next one.

A run whose base is missing is declined as `fetching` and joined once the pack is complete; the loop
polls in between, so other runs' work never waits for a long download.
"""

import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from smidgen.edge_client.bases.base import Base, BaseError
from smidgen.edge_client.bases.layout import PackError
from smidgen.edge_client.bases.manifest import KNOWN, NEEDED, read_manifest
from smidgen.edge_client.client.connection import Unreachable, pause_s
from smidgen.edge_client.client.packs.shelf import NoRoom, Shelf
from smidgen.edge_client.client.packs.sources import NotHere, PackSource, Web
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.files import PRIVATE
from smidgen.edge_client.guest.process import nap
from smidgen.edge_client.tables import size
from smidgen.edge_client.wire.fleet import MANIFEST, SHA_256, Pack, PackFile, Terms

log = logging.getLogger(__name__)
READ_BYTES = 1 << 20
MOST_ROUNDS = 10  # of all sources, in which less than `LEAST_BYTES` come
# A source is judged by what it gives while it is waited for; a slow line over 2G gives more.
JUDGED_S = 30.0
LEAST_BYTES = int(1024 * JUDGED_S)


class NotFetched(Failed):
    """A pack that nobody gives as it was announced."""


class Part:
    """One file as it arrives, hashed on the way.

    Args:
        folder: Of the pack that arrives.
        name: The file's.
        told: What it is to become.

    Raises:
        OSError: It cannot be opened.

    Attributes:
        name: As given.
        told: As given.
        size: Bytes that are here.
    """

    def __init__(self, folder: Path, name: str, told: PackFile) -> None:
        self.name, self.told, self.size = name, told, 0
        self._descriptor, self._hash = _opened(folder, name), hashlib.sha256()
        if os.fstat(self._descriptor).st_size > told.bytes:
            os.ftruncate(self._descriptor, 0)
        while block := os.read(self._descriptor, READ_BYTES):
            self._hash.update(block)
            self.size += len(block)

    @property
    def is_right(self) -> bool:
        """Whether all of it is here, and as it was told."""
        return self.size == self.told.bytes and self._hash.hexdigest() == self.told.sha256

    def write(self, piece: bytes) -> None:
        """Add bytes to the end.

        Raises:
            OSError: The disk is full.
        """
        left = memoryview(piece)
        while left:
            written = os.pwrite(self._descriptor, left, self.size)
            self._hash.update(left[:written])
            self.size, left = self.size + written, left[written:]

    def restart(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self.size, self._hash = 0, hashlib.sha256()

    def close(self, *, is_done: bool = False) -> None:
        """Let go of the file, once; one that is done is on the disk then.

        Raises:
            OSError: It is not; the file is let go of all the same.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            if is_done:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _opened(folder: Path, name: str) -> int:
    """A file of a folder, to be read and written; what is not a plain file of its own is removed.

    Neither the folder nor the file is reached through a link.
    """
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            told = os.stat(name, dir_fd=inside, follow_symlinks=False)
            if not stat.S_ISREG(told.st_mode) or told.st_nlink > 1:
                os.unlink(name, dir_fd=inside)
        except FileNotFoundError:
            pass
        descriptor = os.open(name, flags, PRIVATE, dir_fd=inside)
        os.fchmod(descriptor, PRIVATE)
        return descriptor
    finally:
        os.close(inside)


class Fetch:
    """A pack that is being fetched.

    Args:
        shelf: Where it will lie; there is room for it.
        base_id: Its id.
        pack: What was announced.
        sources: Where to ask, in this order.
        clock: Seconds, ever growing.
        most_rounds: Rounds of all sources in which too little comes; it is given up for now then.

    Raises:
        NotFetched: What was announced is not a pack, or nobody is known who has it.
        OSError: Its folder cannot be made.

    Attributes:
        came_bytes: What has come in this life.
    """

    def __init__(
        self,
        shelf: Shelf,
        base_id: str,
        pack: Pack,
        sources: Sequence[PackSource],
        clock: Callable[[], float] = time.monotonic,
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        check_announced(pack)
        self._shelf, self._base_id, self._pack, self._clock = shelf, base_id, pack, clock
        self._sources, self._lacks = list(sources), list[str]()
        self._most_rounds = most_rounds
        if not sources:
            raise NotFetched(
                "nobody is known who has the pack: the coordinator does not serve it "
                "(`serve --serve-packs`); give --pack-mirror, or the pack with --base"
            )
        self._folder = shelf.partial(base_id)
        rest = sorted(set(pack.files) - {MANIFEST}, key=lambda name: pack.files[name].bytes)
        self._left = [MANIFEST, *rest]
        self._part: Part | None = None
        self._stream, self._is_asked = ExitStack(), False
        self._pieces: Iterator[bytes] = iter(())
        self._began = 0  # at which byte of the file the source's answer did
        self._failures, self._again_s, self.came_bytes = 0, 0.0, 0
        self._forgiven = 0  # of this file: what came up to there makes up for earlier failures
        self._waited_s, self._gave_bytes = 0.0, 0  # of the source's, since it was last judged

    def go_on(self, until_s: float) -> Base | None:
        """Fetch until some time; the pack once it is in its place.

        Raises:
            NotFetched: Nobody gives it; says why.
            NoRoom: The disk is full; what came is removed.
        """
        try:
            while (now_s := self._clock()) < until_s:
                if self._part is None and not self._left:
                    return self._installed()
                if now_s < self._again_s:
                    nap(min(self._again_s, until_s) - now_s)
                else:
                    self._step()
        except OSError as error:
            with suppress(OSError):  # what was written is discarded
                self.close()
            self._shelf.discard(self._base_id)
            raise NoRoom(
                f"the pack cannot be written to {self._shelf.folder}: {error.strerror}; "
                f"{size(self._pack.total_bytes)} are needed: free some space, or give another "
                "--packs"
            ) from error
        except NotFetched:
            self.close()
            raise
        return None

    def close(self) -> None:
        """Let go of file and source; what has arrived stays."""
        self._hang_up()
        part, self._part = self._part, None
        if part is not None:
            part.close()

    def _step(self) -> None:
        """Open a file, ask for it, or take one piece of it."""
        if self._part is None:
            name = self._left[0]
            self._part = Part(self._folder, name, self._pack.files[name])
            self._forgiven = self._part.size
            if self._part.size:
                log.info("%s: %s of it are here already", name, size(self._part.size))
            self._look()
            return
        began_s = self._clock()
        try:
            if not self._is_asked:
                self._ask(self._part)
            piece = next(self._pieces, None)
            self._waited_s += self._clock() - began_s
        except Unreachable as error:
            self._failed(error)
            return
        except NotHere as error:
            self._drop(str(error))
            return
        if piece is None:
            self._ended(self._part)
        elif self._part.size + len(piece) > self._part.told.bytes:
            self._wrong(self._part, "is longer")
        else:
            self._part.write(piece)
            self.came_bytes += len(piece)
            if self._part.size >= self._forgiven + LEAST_BYTES:  # none of them comes twice
                self._forgiven, self._failures = self._part.size, 0
            self._gave_bytes += len(piece)
            self._look()
            self._judge()

    def _judge(self) -> None:
        """Leave a source for the next one that has given too little for a while."""
        if not self._is_asked or self._waited_s < JUDGED_S:
            return
        gave, waited_s = self._gave_bytes, self._waited_s
        self._waited_s, self._gave_bytes = 0.0, 0
        if gave < LEAST_BYTES:
            self._failed(Unreachable(f"only {gave} bytes came in {waited_s:.0f} s"))

    def _ask(self, part: Part) -> None:
        opened = self._sources[0].opened(self._base_id, part.name, part.size)
        first, self._pieces = self._stream.enter_context(opened)
        if first != part.size:  # the source gives whole files alone
            part.restart()
        self._began, self._is_asked = first, True
        self._waited_s, self._gave_bytes = 0.0, 0

    def _look(self) -> None:
        """Go on to the next file where this one is right."""
        part = self._part
        if part is None or part.size < part.told.bytes:
            return
        if not part.is_right:
            if self._is_asked:
                self._wrong(part, "has another SHA-256")
            else:  # as a power cut left it
                part.restart()
                self._forgiven = 0
            return
        self._part, self._failures = None, 0
        part.close(is_done=True)
        self._hang_up()
        self._left.pop(0)
        if part.name == MANIFEST:
            self._check_manifest()

    def _ended(self, part: Part) -> None:
        """The source has no more of a file that is not whole."""
        name = self._sources[0].name
        if part.told.bytes == part.size:
            self._look()
        else:
            self._drop(f"{name}: {part.name} is cut short there ({part.size} bytes)")

    def _wrong(self, part: Part, what: str) -> None:
        """Begin again; a source that gave all of it is asked no more."""
        name, is_whole = self._sources[0].name, self._began == 0
        part.restart()
        self._forgiven = 0
        self._hang_up()
        if is_whole:
            self._drop(f"{name}: {part.name} {what} than the pack's there")

    def _drop(self, why: str) -> None:
        """Ask a source no more.

        Raises:
            NotFetched: It was the last one.
        """
        self._hang_up()
        gone = self._sources.pop(0)
        said = why if gone.name in why else f"{gone.name}: {why}"
        self._lacks.append(said)
        if not self._sources:
            raise NotFetched(
                f"nobody has the run's pack {self._base_id[:12]} as it is to be: "
                f"{'; '.join(self._lacks)}; give --pack-mirror with a whole copy, or --base"
            )
        log.warning("%s; asking %s", said, self._sources[0].name)

    def _failed(self, error: Unreachable) -> None:
        """Ask the next source, after a pause once all were asked.

        Raises:
            NotFetched: Nobody has answered for a while.
        """
        self._hang_up()
        self._failures += 1
        rounds, place = divmod(self._failures, len(self._sources))
        if self._failures == 1:
            log.warning("%s: %s; trying again", self._sources[0].name, error)
        if rounds >= self._most_rounds:
            said = "; ".join([*self._lacks, f"{self._sources[0].name}: {error}"])
            raise NotFetched(
                f"the run's pack {self._base_id[:12]} cannot be fetched now: {said}; what came is "
                "kept for the next try"
            ) from error
        self._sources.append(self._sources.pop(0))
        if not place:
            self._again_s = self._clock() + pause_s(rounds, error.asked_s)

    def _hang_up(self) -> None:
        self._stream.close()
        self._stream, self._pieces, self._is_asked = ExitStack(), iter(()), False

    def _check_manifest(self) -> None:
        """Hold what was announced against the manifest, whose hash is the base id.

        Raises:
            NotFetched: They differ.
        """
        try:
            manifest = read_manifest(self._folder / MANIFEST)
        except PackError as error:
            self._shelf.discard(self._base_id)
            raise NotFetched(f"the pack that is announced is not one: {error}") from error
        is_same = manifest.files == {
            name: self._pack.files[name] for name in self._pack.files if name != MANIFEST
        }
        is_licence = (manifest.licence or "") == self._pack.licence
        if manifest.pack_id != self._base_id or not is_same or not is_licence:
            self._shelf.discard(self._base_id)
            raise NotFetched(
                f"the pack that is announced is not the run's base {self._base_id[:12]}; its "
                "operator has to look after that"
            )

    def _installed(self) -> Base:
        try:
            return self._shelf.install(self._base_id)
        except BaseError as error:
            self._shelf.discard(self._base_id)
            raise NotFetched(f"the pack cannot be used: {error}") from error


def check_announced(pack: Pack) -> None:
    """Refuse what lacks a file of a pack, or lists one that is none.

    Raises:
        NotFetched: Names the file.
    """
    for name in sorted(set(pack.files) - {MANIFEST, *KNOWN}):
        raise NotFetched(f"the announced pack lists {name!r}, which is not a file of a pack")
    for name in sorted({MANIFEST, *NEEDED} - set(pack.files)):
        raise NotFetched(f"the announced pack lacks {name}")


def announced_by(pack: Pack) -> list[PackSource]:
    """The mirrors that a coordinator names; one that is no address is left out, with a line."""
    found: list[PackSource] = []
    for place, address in enumerate(pack.mirrors, 1):
        try:
            found.append(Web(address))
        except WrongInput:
            log.warning("mirror %d of pack %s is not an address; it is left out", place, pack.name)
    return found


class PackDownloading(Failed):
    """The run's pack is on its way to this device."""


class Fetching:
    """What is fetched, in which order.

    Args:
        shelf: Where packs lie; None: its owner allows none.
        mirrors: What its owner names, asked first.
        served: The coordinator.
        needed: Base ids of the runs that go on.
    """

    def __init__(
        self,
        shelf: Shelf | None,
        mirrors: Sequence[PackSource],
        served: PackSource,
        needed: Callable[[], Collection[str]],
    ) -> None:
        self._shelf, self._mirrors, self._served, self._needed = shelf, mirrors, served, needed
        self._due: dict[str, list[Terms]] = {}  # runs by their base's id, in the order of fetching
        self._now: Fetch | None = None
        self._began_s = 0.0
        self._failed: dict[str, Exception] = {}

    @property
    def is_under_way(self) -> bool:
        return bool(self._due)

    def instead_of(self, error: Exception, terms: Terms) -> Exception:
        """Why a run cannot be joined now, where another base is the reason.

        Args:
            error: That reason; it stays where this device fetches nothing.
            terms: The run's; its pack is fetched from now on.
        """
        if self._shelf is None or terms.pack is None:
            return error
        if SHA_256.fullmatch(terms.base_id) is None:  # it names folders of packs
            return NotFetched(
                "the run's base id is not a SHA-256, so no pack can be fetched for it"
            )
        if (failed := self._failed.pop(terms.base_id, None)) is not None:
            return failed
        told = f"the run's base {terms.pack.name} is being fetched"
        runs = self._due.setdefault(terms.base_id, [])
        if terms.run_id not in [one.run_id for one in runs]:
            runs.append(terms)
        return PackDownloading(told)

    def go_on(self, seconds: float = 5.0) -> list[Terms]:
        """Fetch for a while; runs to look at again, whose pack is here or not to be had."""
        if self._shelf is None or not self._due:
            return []
        base_id, runs = next(iter(self._due.items()))
        try:
            if self._now is None:
                self._now = self._begun(self._shelf, base_id, runs[0])
            base = self._now.go_on(time.monotonic() + seconds)
        except (NotFetched, NoRoom) as error:
            self._failed[base_id] = error
        except OSError as error:
            self._failed[base_id] = NoRoom(f"--packs {self._shelf.folder}: {error.strerror}")
        else:
            if base is None:
                return []
            self._say_fetched(base)
        self.close()
        return self._due.pop(base_id)

    @property
    def runs(self) -> list[Terms]:
        return [terms for runs in self._due.values() for terms in runs]

    def drop(self, run_id: str) -> None:
        """Fetch nothing more for a run; what has arrived stays while there is room for it."""
        for base_id, runs in list(self._due.items()):
            self._due[base_id] = [terms for terms in runs if terms.run_id != run_id]
            if not self._due[base_id]:
                if base_id == next(iter(self._due)):  # the one under way
                    self.close()
                del self._due[base_id]

    def close(self) -> None:
        """Let go of what is under way; what has arrived stays."""
        if self._now is not None:
            self._now.close()
            self._now = None

    def _begun(self, shelf: Shelf, base_id: str, terms: Terms) -> Fetch:
        pack = terms.pack
        assert pack is not None  # only such runs are due
        stays = {*self._needed(), *self._due}
        for removed in shelf.make_room(base_id, pack.total_bytes, stays):
            log.info("removed pack %s, which no open run needs", removed[:12])
        announced = announced_by(pack)
        sources = [*self._mirrors, *announced, *([self._served] if pack.is_served else [])]
        fetch = Fetch(shelf, base_id, pack, sources)
        log.info(
            "run %s: fetching its base %s (%s, licence: %s) from %s",
            *(terms.run_name, pack.name, size(pack.total_bytes), pack.licence or "not said"),
            ", ".join(source.name for source in sources),
        )
        self._began_s = time.monotonic()
        return fetch

    def _say_fetched(self, base: Base) -> None:
        assert self._now is not None
        spent_s = time.monotonic() - self._began_s
        log.info(
            "pack %s is here: %s came in %.1f s", base.folder, size(self._now.came_bytes), spent_s
        )
