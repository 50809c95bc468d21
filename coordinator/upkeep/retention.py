"""Retention: which blobs a run still needs, by its journal alone, removal of others, disk space.

An update is needed until its step is closed, or in asynchronous rounds until it is in a version.
Kept adapters are the first, the last few, the best by evaluation, and those that devices may still
have been asked to start from. `RetainedAdapters` is folded from the journal as the run's state is;
its size does not grow with the run.

An interrupted removal is continued by the next one. A blob is written before the journal refers to
it, so a writer holds `Store.claiming` meanwhile; a remover holds the opposite lock, a few files at
a time, and checks again what is needed. A file being downloaded is read to its end.

`serve` sets the limits of disk space; other commands read them. The reserve of free space is kept
beside the store, since it is about this disk; the number of rounds to keep is in the database, for
commands on other machines too.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from smidgen.coordinator.rounds.events import Answered, Event, Folded, StepClosed, StepOpened
from smidgen.coordinator.rounds.history import KNOWN_ROUNDS, past_of
from smidgen.coordinator.rounds.scheduling.asking import asynchronous
from smidgen.coordinator.rounds.scoring import Score, is_as_good
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.reports import forget_old
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import from_json, write_atomically
from smidgen.edge_client.planning.allocator import trim
from smidgen.edge_client.planning.plan import parse_size
from smidgen.edge_client.tables import size

KEEP_ROUNDS = 20
LEAST_FREE, LEAST_FREE_BYTES = "512M", 512 << 20
MOST_ROUNDS = 1_000_000
LIMITS_FILE = "limits.json"


@dataclass(frozen=True)
class DiskLimits:
    """How much of a run is kept, and how much of the disk is left alone.

    Attributes:
        keep_rounds: How many of a run's newest rounds keep their adapter.
        least_free_bytes: Below this much free space nothing more is taken; 0 for no mark.
    """

    keep_rounds: int = KEEP_ROUNDS
    least_free_bytes: int = LEAST_FREE_BYTES


def limits_of(keep_rounds: int, least_free: str) -> DiskLimits:
    """Limits as they are typed.

    Raises:
        WrongInput: Names the option.
    """
    demand(0 <= keep_rounds <= MOST_ROUNDS, f"--keep-rounds {keep_rounds}: 0 to {MOST_ROUNDS}")
    is_none = least_free == "0"
    least = 0 if is_none else parse_size("--least-free", least_free, "0 for no mark")
    return DiskLimits(keep_rounds, least)


def note(folder: Path, limits: DiskLimits) -> None:
    """Write down what a store is served with; a full disk may not take it."""
    with suppress(OSError):
        write_atomically(folder / LIMITS_FILE, json.dumps(asdict(limits)).encode(), mode=0o600)


def noted(folder: Path) -> DiskLimits:
    """What a store was served with last; the defaults where nobody knows."""
    try:
        return from_json((folder / LIMITS_FILE).read_bytes(), DiskLimits)
    except (OSError, msgspec.MsgspecError):
        return DiskLimits()


def rounds_kept(store: Store) -> int:
    """How many of a run's newest rounds keep their adapter in a store."""
    known = store.marks.keep_rounds()
    return noted(store.folder).keep_rounds if known is None else known


LOOK_S = 1.0  # between two looks at the disk


class Usage(Protocol):
    """What `shutil.disk_usage` says."""

    @property
    def free(self) -> int: ...


class Room:
    """A low-water mark of a disk; safe to use from several threads.

    Args:
        folder: On the disk.
        least_free_bytes: Below this much free space nothing more is taken; 0 for no mark.
        usage: What `shutil.disk_usage` says.
        clock: Seconds that go forward.
    """

    def __init__(
        self,
        folder: Path,
        least_free_bytes: int = LEAST_FREE_BYTES,
        usage: Callable[[Path], Usage] = shutil.disk_usage,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.least_free_bytes = least_free_bytes
        self._folder, self._usage, self._clock = folder, usage, clock
        self._lock = Lock()
        self._looked_s, self._free_bytes = float("-inf"), 0

    @property
    def free_bytes(self) -> int:
        """Free space, as it was at most a second ago."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s, self._free_bytes = now_s, self._usage(self._folder).free
            return self._free_bytes

    @property
    def is_full(self) -> bool:
        return self.least_free_bytes > 0 and self.free_bytes < self.least_free_bytes


STEPS_ON_THEIR_WAY = 3  # the open one and the last two: as long as the ledger knows their work


@dataclass(frozen=True)
class RetainedAdapters:
    """A run's adapters that somebody may still want.

    Attributes:
        keep_rounds: How many of the newest rounds keep theirs.
        recent: (round, SHA-256) of those, the newest last.
        best: SHA-256 of the best evaluated one; of equals the newest.
        best_score: How right it was; None where nothing was evaluated.
        asked: SHA-256 of what the newest steps start from.
        lower: SHA-256 of the same in lower ranks, and of what their masks go by, of each of them.
    """

    keep_rounds: int = KEEP_ROUNDS
    recent: tuple[tuple[int, str], ...] = ()
    best: str | None = None
    best_score: Score | None = None
    asked: tuple[str, ...] = ()
    lower: tuple[tuple[str, ...], ...] = ()


def shelved(shelf: RetainedAdapters, before: State, event: Event, after: State) -> RetainedAdapters:
    """Fold one event.

    Args:
        shelf: The run's, before the event.
        before: The run's state before the event.
        event: What happened.
        after: The run's state after it.
    """
    if isinstance(event, Folded):
        known, most = msgspec.convert(event.shelf, RetainedAdapters), shelf.keep_rounds
        recent = known.recent[max(0, len(known.recent) - most) :]
        return replace(known, keep_rounds=most, recent=recent)
    if isinstance(event, StepOpened):
        asked = (*shelf.asked, event.adapter_sha256)[-STEPS_ON_THEIR_WAY:]
        beside = tuple(name for _, name in (*event.lower, *event.masks))
        lower = (*shelf.lower, beside)[-STEPS_ON_THEIR_WAY:]
        return replace(shelf, asked=asked, lower=lower)
    if not isinstance(event, StepClosed) or before.step is None:
        return shelf
    opened = before.step.opened
    if opened.brings_files:
        recent = (*shelf.recent, (opened.round_index, after.adapter_sha256))
        return replace(shelf, recent=recent[max(0, len(recent) - shelf.keep_rounds) :])
    score = after.scores.get(opened.round_index) if opened.kind == "evaluate" else None
    if score is None or (shelf.best_score and not is_as_good(score, shelf.best_score)):
        return shelf
    return replace(shelf, best=opened.adapter_sha256, best_score=score)


def adapters_kept(shelf: RetainedAdapters, state: State) -> set[str]:
    """Adapters of a run that stay, by SHA-256, and what devices fetch beside them."""
    always = {state.first_sha256, state.adapter_sha256, state.evaluated_sha256}
    always |= {shelf.best} if shelf.best else set()
    always |= {state.good.adapter_sha256} if state.good else set()
    always |= {one.adapter_sha256 for one in asynchronous(state).values()}
    always |= beside(state)
    always = always.union(*shelf.lower)
    return always | set(shelf.asked) | {sha256 for _, sha256 in shelf.recent}


def updates_kept(state: State) -> set[str]:
    """Updates of a run that stay: what the open step has got so far."""
    answers = [one for step in (state.step, state.masked) if step for one in step.answers.values()]
    answers += [one.answer for one in state.underway.values() if one.answer]
    return {answer.update_sha256 for answer in answers if answer.update_sha256}


def blobs_kept(shelf: RetainedAdapters, state: State) -> set[str]:
    """All blobs of a run that stay, by SHA-256."""
    return adapters_kept(shelf, state) | updates_kept(state) | remembered_kept(state)


def remembered_kept(state: State) -> set[str]:
    """What a run's next round goes on from beside its adapter; also of a run that is finished."""
    return {state.memory_sha256} - {""} | beside(state)


def beside(state: State) -> set[str]:
    """What devices fetch beside adapters, or in their place."""
    coded = {step.step_sha256 for step in state.kept.steps}
    return coded | set(state.shared.values())


def of_finished(shelf: RetainedAdapters) -> RetainedAdapters:
    """What a finished run still needs: first, best and last adapter."""
    return replace(shelf, keep_rounds=0, recent=(), asked=(), lower=())


def folded(
    shelf: RetainedAdapters, state: State, events: Iterable[Event]
) -> tuple[RetainedAdapters, State]:
    """Fold the events that came since."""
    for event in events:
        before, state = state, evolve(state, event)
        shelf = shelved(shelf, before, event, state)
    return shelf, state


AT_ONCE = 200  # files that are removed while uploads wait
PATIENCE_S = 30.0  # for uploads that are under way
Kept = Callable[[], Collection[str]]


class Busy(Exception):
    """Uploads went on all the time; nothing more was removed."""


@dataclass
class RunBlobs:
    """A run's blobs by its journal, read as far as it goes.

    Attributes:
        run: The run.
        shelf: Its adapters that somebody may still want.
        state: Where it stands.
        seq: Events read.
        adapters: SHA-256 of all that the journal tells of.
        updates: SHA-256 of all that it tells of.
    """

    run: Run
    shelf: RetainedAdapters
    state: State
    seq: int = 0
    adapters: set[str] = field(default_factory=set)
    updates: set[str] = field(default_factory=set)

    def read_on(self, store: Store) -> None:
        self.shelf, self.state = folded(self.shelf, self.state, self._noted(store))

    def _noted(self, store: Store) -> Iterator[Event]:
        for event in store.journal(self.run.run_id, self.seq):
            self.seq = event.events + 1 if isinstance(event, Folded) else self.seq + 1
            if isinstance(event, Folded):
                self.adapters.update(past_of(event).adapters.values())
            if isinstance(event, Answered) and event.update_sha256:
                self.updates.add(event.update_sha256)
            if isinstance(event, StepClosed) and event.adapter_sha256:
                self.adapters.add(event.adapter_sha256)
            yield event

    def kept(self, is_chosen: bool, is_thorough: bool) -> set[str]:
        """Blobs that stay; of a run that was not chosen all adapters."""
        always = updates_kept(self.state) | remembered_kept(self.state)
        if not is_chosen:
            return self.adapters | always
        is_done = is_thorough and self.state.is_finished
        shelf = of_finished(self.shelf) if is_done else self.shelf
        return adapters_kept(shelf, self.state) | always


def book_of(run: Run, keep_rounds: int) -> RunBlobs:
    sha256 = run.adapter_sha256
    return RunBlobs(run, RetainedAdapters(keep_rounds), State(sha256), adapters={sha256})


class Books:
    """All runs of a store by their journals.

    Args:
        store: Also one that is served meanwhile.
        keep_rounds: How many of the newest rounds keep their adapter.
        run_id: The run that is pruned; None for all, and for what belongs to none.
        is_thorough: Whether a finished run keeps its first, best and last adapter alone.
    """

    def __init__(
        self, store: Store, keep_rounds: int, run_id: str | None, is_thorough: bool
    ) -> None:
        self._store, self._keep_rounds = store, keep_rounds
        self._run_id, self._is_thorough = run_id, is_thorough
        self._books: dict[str, RunBlobs] = {}

    def kept(self) -> set[str]:
        """Blobs that stay, by what the journals say now."""
        for run in self._store.runs():
            book = self._books.setdefault(run.run_id, book_of(run, self._keep_rounds))
            book.read_on(self._store)
        books = self._books.values()
        return set().union(*(b.kept(self._is_chosen(b), self._is_thorough) for b in books))

    def _is_chosen(self, book: RunBlobs) -> bool:
        return self._run_id in (None, book.run.run_id)

    def may_go(self, name: str) -> bool:
        """Whether a blob is among those that were asked for."""
        books = self._books.values()
        return self._run_id is None or any(
            name in book.adapters or name in book.updates for book in books if self._is_chosen(book)
        )

    def kind(self, name: str) -> str:
        """`adapter`, `update`, or `orphan`: what belongs to no run."""
        books = self._books.values()
        if any(name in book.adapters for book in books):
            return "adapter"
        return "update" if any(name in book.updates for book in books) else "orphan"


def remove(store: Store, names: Collection[str], kept: Kept, patience_s: float = 0.0) -> set[str]:
    """Remove those of these blobs that are still not needed.

    Args:
        store: Holds them.
        names: Of files among the blobs.
        kept: What is needed by now; asked again before each few files.
        patience_s: How long to wait for uploads that are under way.

    Returns:
        Those that were removed.

    Raises:
        Busy: There was no moment without an upload.
    """
    left, removed = sorted(names), set[str]()
    end = time.monotonic() + patience_s
    while left:
        with store.removing() as is_held:
            if is_held:
                some, left = left[:AT_ONCE], left[AT_ONCE:]
                needed = kept()
                gone = {name for name in some if name not in needed}
                store.blobs.remove(gone)
                removed |= gone
                continue
        if time.monotonic() >= end:
            raise Busy
        time.sleep(0.02)
    return removed


REPORTS_AT_ONCE = 50  # rounds whose reports go together, each as many steps
LOG = logging.getLogger(__name__)


class Caretaker:
    """Looks after one store; `look` and `tidy` are called by one thread, `is_full` by any.

    Args:
        store: Which.
        kept: What is needed by now.
        limits: What it may hold.
        usage: What `shutil.disk_usage` says.

    Attributes:
        room: Its disk.
        is_due: Whether there may be something to remove; set by who closes a step.
    """

    def __init__(
        self, store: Store, kept: Kept, limits: DiskLimits, usage: Callable[[Path], Usage]
    ) -> None:
        self._store, self._kept = store, kept
        self.room = Room(store.folder, limits.least_free_bytes, usage)
        self.is_due = True  # what an earlier process left
        self._was_full = self._has_failed = False
        self._tidied = 0

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room for another step's updates."""
        return self.room.is_full

    def look(self) -> bool:
        """Whether the disk is full; says so when that changes, and looks for what may go."""
        is_full = self.room.is_full
        if is_full != self._was_full:
            self._was_full, self.is_due = is_full, True
            free, least = size(self.room.free_bytes), size(self.room.least_free_bytes)
            if is_full:
                LOG.warning(
                    "the disk of the store is full: %s free, --least-free is %s; no step opens "
                    "and no update is taken until there is room",
                    *(free, least),
                )
            else:
                LOG.info("the disk of the store has room again: %s free; going on", free)
        return is_full

    def tidy(self) -> None:
        """Remove what nothing needs any more, if a step has closed; gone on with if it is cut."""
        if not self.is_due:
            return
        try:
            if self._tidied % REPORTS_AT_ONCE == 0:
                # As many of a run as its journal tells of
                forget_old(self._store.database, KNOWN_ROUNDS, REPORTS_AT_ONCE)
            self._tidied += 1
            remove(self._store, self._store.blobs.present().keys() - self._kept(), self._kept)
        except Busy:
            return  # uploads are under way: at the next tick
        except OSError as error:
            if not self._has_failed:
                LOG.warning("cannot remove what is no longer needed: %s", error)
            self._has_failed = True
            return
        self.is_due = self._has_failed = False
        trim()  # what the step's updates took
