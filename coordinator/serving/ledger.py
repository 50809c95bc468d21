"""Every run's state in memory, always equal to its journal on disk.

Events are appended only here: first to the journal, then to the state. `append` says whether the
state it was decided on still held. Where several processes append to one journal, each position is
written once: a process that finds it taken reads on and decides again.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from threading import RLock

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.fleet.presence import Clock
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Answered,
    Event,
    Finished,
    Folded,
    Resumed,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.history import (
    KNOWN_ROUNDS,
    NOTHING,
    Past,
    folded_from,
    is_long,
    news_of,
    past_of,
    to_plain,
)
from smidgen.coordinator.rounds.machine import rounds_of
from smidgen.coordinator.rounds.scheduling.asking import (
    answer_to,
    asked_at_s,
    asynchronous,
    is_asked,
    works_of,
)
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.database import Conflict, Statement, Together
from smidgen.coordinator.storage.runs import config_of
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep.retention import (
    KEEP_ROUNDS,
    STEPS_ON_THEIR_WAY,
    Busy,
    RetainedAdapters,
    adapters_kept,
    blobs_kept,
    shelved,
)
from smidgen.edge_client.wire.messages import Receipt

CLOSED = Receipt(False, "its step is closed")
OUT_OF_DATE = Receipt(False, "out of date: newer adapters were made, or it took too long")
LATE = Receipt(False, "too late: enough other devices have answered")


@dataclass(frozen=True)
class Live:
    """A run in memory.

    Attributes:
        run: Its row.
        config: `run.config`, decoded.
        state: What its journal gives.
        seq: How long its journal is, with what was folded away.
        first: Where it begins: the place of the event that stands for those before it.
        works: The open step's work, and training that goes on beside it, by device id.
        shelf: Its adapters that somebody may still want.
        past: What is known of its rounds.
    """

    run: Run
    config: RunConfig
    state: State
    seq: int = 0
    first: int = 0
    works: Mapping[str, str] = field(default_factory=dict)
    shelf: RetainedAdapters = field(default_factory=RetainedAdapters)
    past: Past = NOTHING

    @property
    def rounds(self) -> int:
        """Rounds until it is finished, those that it was extended by included."""
        return rounds_of(self.config, self.state)

    def open_work(self, device_id: str) -> str | None:
        """The work that a device is asked now and has not answered; none while it is paused."""
        state, work_id = self.state, self.works.get(device_id)
        if work_id is None or answer_to(state, work_id) is not None or state.is_paused:
            return None
        return None if state.step is not None and state.step.turns_away else work_id


@dataclass(frozen=True)
class OpenWork:
    """A piece of work that some step asked for, open or closed not long ago."""

    run_id: str
    device_id: str
    opened: StepOpened


class Ledger:
    """All runs of one store; safe to use from several threads, of a shared one from processes.

    Of each run it knows the work of the open step and of the last two, and the last rounds, so what
    it holds does not grow with the rounds; nor does what it writes (`shorten`).

    Args:
        store: Holds the journals.
        now_s: Unix time.
        keep_rounds: How many of a run's newest rounds keep their adapter.
        clock: Measures how long answers take; None: one that starts now.
    """

    def __init__(
        self,
        store: Store,
        now_s: float,
        keep_rounds: int = KEEP_ROUNDS,
        clock: Clock | None = None,
    ) -> None:
        self._store, self._clock = store, clock or Clock(now_s)
        self._lock = RLock()
        self._live: dict[str, Live] = {}
        self._asked: dict[str, OpenWork] = {}
        self._counted: dict[str, str] = {}  # work id -> its update's SHA-256, empty of a report
        self._steps: dict[str, deque[StepOpened]] = {}  # of each run, whose work is in `_asked`
        self._adapters: dict[str, set[str]] = {}  # of each run, that are not gone
        self._shelf = RetainedAdapters(keep_rounds)
        self._answering = Together(self._answer_all)
        self._is_shared, self._heard = store.place.is_shared, list[tuple[Live, Event]]()
        self.load_new_runs()
        if not self._is_shared:
            self.resume(now_s)

    def resume(self, now_s: float) -> None:
        """Begin to carry runs on: deadlines of open steps count from here again."""
        for run_id in list(self._live):
            while (live := self._live[run_id]).state.step is not None:
                if self.append(live, Resumed(now_s)):
                    break  # else an answer came in between

    def follow(self) -> bool:
        """Take in what other processes have appended; whether there was something."""
        if not self._is_shared:
            return False
        with self._lock:
            known = {run_id: live.seq for run_id, live in self._live.items()}
            longer = self._store.longer(known)
            for run_id in longer:
                self._read_on(run_id)
            return bool(longer)

    def heard(self) -> list[tuple[Live, Event]]:
        """What others have appended since the last call: each run as it stood, and its event."""
        with self._lock:
            heard, self._heard = self._heard, []
            return heard

    def _read_on(self, run_id: str) -> None:
        for event in self._store.journal(run_id, self._live[run_id].seq):
            self._heard.append((self._live[run_id], event))
            self._take(run_id, event)

    def _take(self, run_id: str, event: Event) -> None:
        """Take in an event, whoever has written it."""
        if isinstance(event, Folded):  # which tells of the newest steps itself
            for opened in self._steps.pop(run_id, ()):
                self._forget(opened)
        self._live[run_id] = after = self._folded(self._live[run_id], event)
        if isinstance(event, Folded):
            self._adapters[run_id] = adapters_kept(after.shelf, after.state)

    def load_new_runs(self) -> list[Live]:
        """Replay the journals of runs that are in the store but not here yet; those runs."""
        new = []
        with self._lock:
            for run in self._store.runs():
                if run.run_id not in self._live:
                    state = State(run.adapter_sha256)
                    past = Past({0: run.adapter_sha256})
                    live = Live(run, config_of(run), state, shelf=self._shelf, past=past)
                    for event in self._store.journal(run.run_id):
                        live = self._folded(live, event)
                    self._adapters[run.run_id] = adapters_kept(live.shelf, live.state)
                    self._live[run.run_id] = live
                    new.append(live)
        return new

    def all(self) -> list[Live]:
        return list(self._live.values())  # no lock: whoever polls need not wait for a disk

    def open(self) -> list[Live]:
        return [live for live in self.all() if not live.state.is_finished]

    def run(self, run_id: str) -> Live | None:
        return self._live.get(run_id)

    def asked(self, work_id: str) -> OpenWork | None:
        """What was asked with a work id, by the open step of a run or its last two."""
        if work_id not in self._asked:
            self.follow()  # another process may just have asked it
        return self._asked.get(work_id)

    def opened(self, live: Live, work_id: str) -> StepOpened:
        """The step that asked for open work: the open one, or of asynchronous rounds an older."""
        step = live.state.step
        is_of_it = step is not None and not step.works and work_id in step.members
        return step.opened if step is not None and is_of_it else self._asked[work_id].opened

    def is_counted(self, work_id: str) -> bool:
        if work_id not in self._counted:
            self.follow()
        return work_id in self._counted

    def over(self, run_id: str, work_id: str, name: str, more: int = 0) -> Receipt | None:
        """What an answer to work gets that waits for none any more; None where it waits, or has it.

        Args:
            run_id: The run.
            work_id: Work that it asked for.
            name: SHA-256 of the update; empty of a report.
            more: Updates that are just being taken.
        """
        state = self._live[run_id].state
        if not is_asked(state, work_id):
            if work_id in self._counted:
                is_same = self._counted[work_id] in ("", name)
                return Receipt(is_same, "" if is_same else "answered already: done")
            asked = self._asked.get(work_id)
            return OUT_OF_DATE if asked and asked.opened.is_asynchronous else CLOSED
        step, is_open = state.step, answer_to(state, work_id) is None
        if step is None or step.opened.is_asynchronous or not is_open:
            return None
        return LATE if step.is_full_with(more) else None

    def is_adapter(self, name: str, run_ids: Iterable[str]) -> bool:
        """Whether a blob is an adapter that one of these runs keeps; updates are nobody's."""
        return any(name in self._adapters.get(run_id, ()) for run_id in run_ids)

    def kept(self) -> set[str]:
        """Blobs that some run needs; of a run that was just created its first adapter.

        Raises:
            Busy: A run has come that is not known here: others may have carried it on by now.
        """
        self.follow()
        runs = self._store.runs()
        if self._is_shared and any(run.run_id not in self._live for run in runs):
            raise Busy
        new = {run.adapter_sha256 for run in runs}
        return new.union(*(blobs_kept(live.shelf, live.state) for live in self.all()))

    def append(
        self,
        live: Live,
        event: Event,
        *beside: Statement,
        holds: Callable[[Live], bool] | None = None,
    ) -> bool:
        """Append an event that was decided on this state; False if it no longer holds.

        Args:
            live: The run as it was then.
            event: What happened; one that stands for all before it takes their place.
            beside: Statements that are carried out with it or not at all.
            holds: Whether it holds on the run as it stands by now; None: on no other than then.
        """
        with self._lock:
            run_id = live.run.run_id
            here = self._live[run_id]
            if here is not live and not (holds is not None and holds(here)):
                return False
            try:
                if isinstance(event, Folded):
                    self._store.fold(run_id, event, *beside)
                else:
                    self._store.append(run_id, here.seq, event, *beside)
            except Conflict:
                if not self.follow():
                    raise
                return False
            self._take(run_id, event)
            return True

    def shorten(self, run_id: str) -> bool:
        """Fold a journal that has grown long into one event; whether it had.

        Raises:
            StoreError, OSError: It could not be written; the journal is as it was.
        """
        with self._lock:
            live, steps = self._live[run_id], tuple(self._steps.get(run_id, ()))
            if not is_long(live.seq - live.first, steps):
                return False
            keys = [key for one in steps for key, _ in one.members if key in self._counted]
            counted = [f"{key}:{self._counted[key]}" for key in keys]
            event = folded_from(
                live.seq, live.state, live.past, to_plain(live.shelf), steps, counted
            )
            again = self._recalled(live, event)
            assert again == replace(live, seq=again.seq, first=live.seq)  # else it is kept whole
            try:
                self._store.fold(run_id, event)
            except Conflict:
                if not self.follow():
                    raise
                return False
            self._live[run_id] = again
            return True

    def answer(self, run_id: str, answer: Answered) -> Receipt:
        """Append an answer to open work; the same answer twice counts once."""
        return self._answering((run_id, answer))

    def _answer_all(self, asked: Sequence[tuple[str, Answered]]) -> list[Receipt]:
        """Append answers that came at the same time: one write for all that are new."""
        with self._lock:
            while True:
                try:
                    return self._answered(asked)
                except Conflict:
                    if not self.follow():
                        raise

    def _answered(self, asked: Sequence[tuple[str, Answered]]) -> list[Receipt]:
        with self._lock:
            new: dict[str, tuple[str, Answered]] = {}
            receipts = []
            for run_id, answer in asked:
                if (receipt := self._receipt(run_id, answer, new)) is None:
                    new[answer.work_id] = run_id, self._measured(run_id, answer)
                    receipt = Receipt(True)
                receipts.append(receipt)
            places, events = Counter[str](), []
            for run_id, answer in new.values():
                events.append((run_id, self._live[run_id].seq + places[run_id], answer))
                places[run_id] += 1
            if events:
                self._store.append_all(events)
            for run_id, answer in new.values():
                self._live[run_id] = self._folded(self._live[run_id], answer)
            return receipts

    def _measured(self, run_id: str, answer: Answered) -> Answered:
        """An answer to the open step, with how long it took."""
        since_s = asked_at_s(self._live[run_id].state, answer.work_id)
        return replace(answer, took_s=round(max(0.0, self._clock.now_s() - since_s), 3))

    def _receipt(
        self, run_id: str, answer: Answered, new: Mapping[str, tuple[str, Answered]]
    ) -> Receipt | None:
        """The receipt of an answer that is not new; `new` are those that are just being taken."""
        if answer.work_id not in new:
            step = self._live[run_id].state.step
            some = new.values() if step is not None and step.opened.enough else ()
            more = sum(run == run_id and one.outcome == "done" for run, one in some)
            if over := self.over(run_id, answer.work_id, answer.update_sha256 or "", more):
                return over
        known = answer_to(self._live[run_id].state, answer.work_id)
        if known is None and answer.work_id in new:
            known = new[answer.work_id][1]
        if known is None:
            return None
        is_same = known == answer
        return Receipt(is_same, "" if is_same else f"answered already: {known.outcome}")

    def _folded(self, live: Live, event: Event) -> Live:
        run_id = live.run.run_id
        if isinstance(event, Folded):
            state = evolve(live.state, event)
            for opened in event.steps:
                self._note(run_id, opened, asynchronous(state).keys())
            self._counted.update(one.partition(":")[::2] for one in event.counted)
            return self._recalled(live, event)
        if isinstance(event, Answered) and event.outcome == "done" and event.work_id in self._asked:
            self._counted[event.work_id] = event.update_sha256 or ""
        state = evolve(live.state, event)
        if isinstance(event, StepOpened):
            self._note(run_id, event, asynchronous(state).keys())
        if isinstance(event, AlsoAsked) and state.step is not None:
            self._steps[run_id].pop()  # the same step, which asks more now
            self._note(run_id, state.step.opened, asynchronous(state).keys())
        works = live.works
        is_other = isinstance(event, StepOpened | AlsoAsked | Finished | RolledBack | StepClosed)
        if is_other or state.underway is not live.state.underway:
            works = works_of(state)
        shelf = shelved(live.shelf, live.state, event, state)
        is_back = isinstance(event, RolledBack)
        if (is_back or shelf is not live.shelf) and run_id in self._live:
            self._adapters[run_id] = adapters_kept(shelf, state)
        news, past, seq = news_of(live.state, event, state), live.past, live.seq + 1
        if news is not NOTHING:
            past = past.plus(news).newest(max(KNOWN_ROUNDS, shelf.keep_rounds))
        return replace(live, state=state, seq=seq, works=works, shelf=shelf, past=past)

    def _recalled(self, live: Live, event: Folded) -> Live:
        """A run by the event that stands for all before it."""
        state = evolve(live.state, event)
        return replace(
            live,
            state=state,
            seq=event.events + 1,
            first=event.events,
            works=works_of(state),
            shelf=shelved(live.shelf, live.state, event, state),
            past=past_of(event),
        )

    def _note(self, run_id: str, opened: StepOpened, at_work: AbstractSet[str]) -> None:
        """Remember the work of a step, and forget that of the oldest one, if nobody is at it."""
        steps = self._steps.setdefault(run_id, deque())
        steps.append(opened)
        for work_id, device_id in opened.members:
            self._asked[work_id] = OpenWork(run_id, device_id, opened)
        while len(steps) > STEPS_ON_THEIR_WAY:
            if at_work and not at_work.isdisjoint(key for key, _ in steps[0].members):
                break
            self._forget(steps.popleft())

    def _forget(self, opened: StepOpened) -> None:
        for work_id, _ in opened.members:
            self._asked.pop(work_id, None)
            self._counted.pop(work_id, None)


def is_work_id(text: str) -> bool:
    """Whether some step may have asked by this id, as `rounds.machine` makes them."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None
