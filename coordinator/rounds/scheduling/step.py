"""The open step: which work was asked of which device, which answers count, and its deadline.

`StepAnswers` maps work ids to answers. It is immutable, and adding one costs O(1): mappings that
grew from one another share their storage, and each knows how many entries are its own.

The deadline is fixed and journaled as the step opens: a multiple of the time in which nearly all
answered the last steps of its kind, never above the run's `deadline_s`, so that a fast fleet does
not wait for one device that hangs. It holds only once half of those asked are done; if most are
slow, the work is, and the run's own deadline counts. A device back from a backoff
(`scheduling.participation`) gets more time with each miss, so that a slow one gets to answer and is
measured.

A training step closes when its buffer is full. Work asked by then but unanswered goes on and counts
in a later step. So do answers beyond the buffer, or between two steps.

    step, underway = ...
    underway = left_over(step)             # when the step closes
    asked = begun(opened, underway)        # when the next one opens
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace

from smidgen.coordinator.rounds.events import AlsoAsked, Answered, Kind, StepOpened
from smidgen.coordinator.rounds.scheduling.participation import Silence
from smidgen.edge_client.errors import demand


@dataclass(frozen=True)
class Underway:
    """Training that a device was asked for.

    Attributes:
        device_id: Who was asked.
        round_index: Of the step that asked: one more than the version it started from.
        adapter_sha256: What it starts from.
        asked_at_s: Unix time; after a restart, when the coordinator was back.
        answer: Its answer, once it is there.
    """

    device_id: str
    round_index: int
    adapter_sha256: str
    asked_at_s: float
    answer: Answered | None = None


Works = Mapping[str, Underway]  # by work id


def asked_of(
    opened: StepOpened, members: Iterable[tuple[str, str]], asked_at_s: float
) -> dict[str, Underway]:
    """What a step asks of more devices."""
    known = opened.round_index, opened.adapter_sha256, asked_at_s
    return {work_id: Underway(device_id, *known) for work_id, device_id in members}


def begun(opened: StepOpened, works: Works) -> dict[str, Underway]:
    """All work of a step that opens: what goes on, but for what is given up, and what is new.

    What was answered before comes first, by version, then device: its order of arrival is nowhere
    to be found once a journal is folded.
    """
    kept = {key: one for key, one in works.items() if key not in opened.given_up}
    ordered = sorted(kept, key=lambda key: (kept[key].round_index, kept[key].device_id, key))
    fresh = asked_of(opened, opened.members, opened.opened_at_s)
    return {key: kept[key] for key in ordered} | fresh


def left_over(works: Works, answers: Mapping[str, Answered], counted: set[str]) -> Works:
    """What goes on after a step: work without an answer, and updates that did not fit the buffer.

    Args:
        works: All work of the step.
        answers: Those that came.
        counted: Work ids of the updates that are in the new version.
    """
    told = {key: replace(one, answer=answers.get(key)) for key, one in works.items()}
    return {
        key: one
        for key, one in told.items()
        if one.answer is None or (one.answer.outcome == "done" and key not in counted)
    }


def with_answer(works: Works, answer: Answered | None, work_id: str) -> Works:
    """With an answer to some of it, or without the one it has."""
    return {**works, work_id: replace(works[work_id], answer=answer)}


def moved(works: Works, by_s: float = 0.0, to_s: float | None = None) -> Works:
    """As if all of it were asked so much later, or then."""
    if not works:
        return works
    return {
        key: replace(one, asked_at_s=one.asked_at_s + by_s if to_s is None else to_s)
        for key, one in works.items()
    }


def busy(works: Works) -> set[str]:
    return {one.device_id for one in works.values() if one.answer is None}


def given_up(
    works: Works, round_index: int, most_staleness: int, deadline_s: float, now_s: float
) -> tuple[str, ...]:
    """Work that counts no more in a step that opens now, in order of its ids.

    It is too many versions old, or its device has not answered for longer than a step waits.

    Args:
        works: What is underway.
        round_index: Of the step.
        most_staleness: Versions that an update may be old.
        deadline_s: Seconds that a device has for an answer.
        now_s: Unix time.
    """
    return tuple(
        key
        for key, one in sorted(works.items())
        if round_index - one.round_index > most_staleness
        or (one.answer is None and now_s - one.asked_at_s >= deadline_s)
    )


def room_for(concurrency: int, at_work: int, idle: int) -> int:
    """How many more may be asked; never more than are idle."""
    return min(idle, max(0, concurrency - at_work)) if concurrency else idle


LARGEST = 10  # buffer that is not said: FedBuff's K


@dataclass(frozen=True)
class Asynchronous:
    """Buffered asynchronous rounds, FedBuff (Nguyen et al. 2022, arXiv:2106.06639).

    Attributes:
        buffer: Updates that make a new version of the adapter; 0: half as many as can train when it
            is begun, from 1 to `LARGEST`.
        concurrency: Most devices that train at the same time; 0 for all that are there.
        discount: a; an update that is s versions old counts (1 + s)^-a, so 0 takes it as new.
        most_staleness: Versions that an update may be old; what is older is out of date.
    """

    buffer: int = 0
    concurrency: int = 0
    discount: float = 0.5
    most_staleness: int = 20

    def __post_init__(self) -> None:
        demand(0 <= self.buffer <= 1_000_000, "buffer: 0 to 1000000")
        demand(0 <= self.concurrency <= 1_000_000, "concurrency: 0 to 1000000")
        demand(0.0 <= self.discount <= 10.0, "discount: 0 to 10")
        demand(0 <= self.most_staleness <= 1000, "most_staleness: 0 to 1000")

    def enough(self, able: int) -> int:
        """Updates that make the next version; where two or more can train not all of them need to.

        Args:
            able: Devices that can train by now, those that do included.
        """
        at_once = min(able, self.concurrency or able)
        return self.buffer or max(1, min(LARGEST, at_once // 2))

    def share(self, staleness: int) -> float:
        """How much an update counts that is so many versions old: 1 of a new one, never more."""
        return float((1.0 + staleness) ** -self.discount)


class _Values(ValuesView[Answered]):
    """In the order in which they came, without a look-up each."""

    def __init__(self, answers: "StepAnswers") -> None:
        super().__init__(answers)
        self._answers = answers

    def __iter__(self) -> Iterator[Answered]:
        return iter(self._answers.in_order())


class StepAnswers(Mapping[str, Answered]):
    """Answers by work id, in the order in which they came; equal to a dict of the same.

    Reading is free for every thread. Two threads must not grow the same one at once.
    """

    __slots__ = ("_places", "_shared", "_size")

    def __init__(self, known: Mapping[str, Answered] | None = None) -> None:
        self._shared = list((known or {}).values())
        self._places = {work_id: place for place, work_id in enumerate(known or {})}
        self._size = len(self._shared)

    def plus(self, answer: Answered) -> "StepAnswers":
        """With an answer to work that has none yet; a fork of an older one is copied first."""
        if answer.work_id in self:
            raise ValueError(f"work {answer.work_id} is answered already")
        here = self if self._size == len(self._shared) else StepAnswers(dict(self))
        grown = StepAnswers.__new__(StepAnswers)
        grown._shared, grown._places, grown._size = here._shared, here._places, here._size + 1
        # The place last: it is nobody's until `grown` is.
        grown._shared.append(answer)
        grown._places[answer.work_id] = here._size
        return grown

    def in_order(self) -> list[Answered]:
        return self._shared[: self._size]

    def __getitem__(self, work_id: str) -> Answered:
        place = self._places[work_id]
        if place >= self._size:  # of one that grew from this one
            raise KeyError(work_id)
        return self._shared[place]

    def __iter__(self) -> Iterator[str]:
        return (answer.work_id for answer in self.in_order())

    def __len__(self) -> int:
        return self._size

    def values(self) -> ValuesView[Answered]:
        return _Values(self)

    def __repr__(self) -> str:
        return f"Answers({dict(self)!r})"


@dataclass(frozen=True)
class Step:
    """The open step: what was asked of whom, and who has answered by work id."""

    opened: StepOpened
    members: Mapping[str, str]  # work_id -> device_id
    answers: Mapping[str, Answered] = field(default_factory=dict)
    is_measured: bool = True  # no restart came in between
    works: Mapping[str, Underway] = field(default_factory=dict)  # where it is asynchronous

    @property
    def is_full(self) -> bool:
        """Whether as many updates have come as it closes with; never where it waits for all."""
        return self.is_full_with(0)

    def is_full_with(self, more: int) -> bool:
        """The same once so many updates more are in."""
        enough = self.opened.enough
        if not enough:
            return False
        return enough <= more + sum(one.outcome == "done" for one in self.answers.values())

    @property
    def is_answered(self) -> bool:
        return len(self.answers) == len(self.members) or self.is_full

    @property
    def is_failed(self) -> bool:
        answers = self.answers.values()
        return self.is_answered and all(one.outcome == "failed" for one in answers)

    @property
    def turns_away(self) -> bool:
        """Whether an update that comes now is too late; where it is not, it is left for later."""
        return self.is_full and not self.opened.is_asynchronous

    def counted(self) -> list[str]:
        """Work ids of the updates that count, by version, then device.

        Those are the first that came where the step needs no more.
        """
        done = [key for key, one in self.answers.items() if one.outcome == "done"]
        enough = self.opened.enough or len(done)
        return sorted(done[:enough], key=lambda key: (self._version(key), self.members[key], key))

    def updates(self) -> list[tuple[str, Answered]]:
        """(device_id, answer) of all updates that count, in the order of `counted`."""
        return [(self.members[key], self.answers[key]) for key in self.counted()]

    def staleness(self, work_id: str) -> int:
        """Versions that were made since the work was asked for; 0 where none can be."""
        return self.opened.round_index - self._version(work_id)

    def left_over(self, is_closed: bool) -> Works:
        """What goes on after it; where it is not closed but asked for again, its updates too."""
        return left_over(self.works, self.answers, set(self.counted()) if is_closed else set())

    def _version(self, work_id: str) -> int:
        one = self.works.get(work_id)
        return self.opened.round_index if one is None else one.round_index


def step_of(opened: StepOpened, underway: Works) -> Step:
    """A step that has just opened.

    Args:
        opened: What it asks.
        underway: Training that goes on.
    """
    if not opened.is_asynchronous:
        return Step(opened, dict(opened.members))
    works = begun(opened, underway)
    answers = {key: one.answer for key, one in works.items() if one.answer is not None}
    members = {key: one.device_id for key, one in works.items()}
    return Step(opened, members, answers, works=works)


def asking_also(step: Step, event: AlsoAsked) -> Step:
    opened = replace(step.opened, members=(*step.opened.members, *event.members))
    works = {**step.works, **asked_of(opened, event.members, event.asked_at_s)}
    return replace(
        step, opened=opened, members={**step.members, **dict(event.members)}, works=works
    )


FACTOR = 3.0
LEAST_S = 60.0  # twice the longest pause of a client that waits for the coordinator
SHARE = 0.9  # of those who answered; of less than ten it is all
STEPS = 5  # of a kind that are remembered

Times = Mapping[Kind, tuple[float, ...]]  # seconds that the last steps of each kind took


def after_answers(times: Times, kind: Kind, answers: Iterable[Answered]) -> Times:
    """What is known of answering times once a step is over.

    Args:
        times: What was known before.
        kind: The step's.
        answers: Its answers; of failures, and where nobody measured, nothing is learned.
    """
    took = sorted(one.took_s for one in answers if one.outcome == "done" and one.took_s is not None)
    if not took:
        return times
    slowest_s = took[math.ceil(SHARE * len(took)) - 1]
    return {**times, kind: (*times.get(kind, ()), slowest_s)[-STEPS:]}


def deadline_of_next(
    deadline_s: float,
    times: Times,
    kind: Kind,
    silences: Mapping[str, Silence],
    chosen: Iterable[str],
) -> float:
    """Seconds after which a step that opens now need not wait longer; 0 where nothing is known.

    Args:
        deadline_s: The run's own.
        times: Of its steps so far.
        kind: The step's.
        silences: Who was silent lately.
        chosen: Its members.
    """
    known = times.get(kind)
    if not known:
        return 0.0
    misses = max((silences[name].misses for name in chosen if name in silences), default=0)
    patience_s = max(LEAST_S, FACTOR * max(known)) * 2.0 ** min(misses, 30)
    return min(deadline_s, patience_s)


def closes_after_s(deadline_s: float, opened: StepOpened, answers: Collection[Answered]) -> float:
    """Seconds after which an open step stops waiting, as it stands.

    Args:
        deadline_s: The run's own.
        opened: The step.
        answers: Those that have come.
    """
    done = sum(one.outcome == "done" for one in answers)
    is_known = opened.deadline_s > 0.0 and 2 * done >= len(opened.members)
    return min(opened.deadline_s, deadline_s) if is_known else deadline_s
