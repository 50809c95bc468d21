"""Removing blobs that nothing needs: while a coordinator serves, and by a command beside it.

What is needed follows from the journals, so a removal that is cut short is simply gone on with by
the next one. A blob is written before the journal refers to it, so whoever does both holds
`Store.claiming` meanwhile; whoever removes holds the opposite, a few files at a time, and looks
again at what is needed. A file that is being downloaded is read to its end.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from coordinator.rounds.events import Answered, Event, Folded, StepClosed
from coordinator.rounds.history import past_of
from coordinator.rounds.state import State
from coordinator.storage.store import Run, Store
from coordinator.upkeep.retention import (
    Shelf,
    adapters_kept,
    folded,
    of_finished,
    remembered_kept,
    updates_kept,
)

AT_ONCE = 200  # files that are removed while uploads wait
PATIENCE_S = 30.0  # for uploads that are under way
Kept = Callable[[], Collection[str]]


class Busy(Exception):
    """Uploads went on all the time; nothing more was removed."""


@dataclass
class Book:
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
    shelf: Shelf
    state: State
    seq: int = 0
    adapters: set[str] = field(default_factory=set)
    updates: set[str] = field(default_factory=set)

    def read_on(self, store: Store) -> None:
        """Take in what the journal has got since."""
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


def book_of(run: Run, keep_rounds: int) -> Book:
    """A run's book before its journal was read."""
    sha256 = run.adapter_sha256
    return Book(run, Shelf(keep_rounds), State(sha256), adapters={sha256})


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
        self._books: dict[str, Book] = {}

    def kept(self) -> set[str]:
        """Blobs that stay, by what the journals say now."""
        for run in self._store.runs():
            book = self._books.setdefault(run.run_id, book_of(run, self._keep_rounds))
            book.read_on(self._store)
        return set().union(*(self._kept_of(book) for book in self._books.values()))

    def _kept_of(self, book: Book) -> set[str]:
        return book.kept(self._is_chosen(book), self._is_thorough)

    def _is_chosen(self, book: Book) -> bool:
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
