"""Round history from a run's journal (adapter and score of each round), and journal compaction.

A long journal is compacted by one event that stands for all events of it. `rounds.state.evolve`,
`rounds.history` and `upkeep.retention` read it in place of those, so that a journal may be
compacted any number of times.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Answered,
    Event,
    Finished,
    Folded,
    Left,
    LossTold,
    Returned,
    RolledBack,
    StepClosed,
    StepOpened,
    encode_event,
)
from smidgen.coordinator.rounds.scoring import Score, is_as_good
from smidgen.coordinator.rounds.state import State, evolve

KNOWN_ROUNDS = 1000  # of the newest, of which a folded journal still tells


@dataclass(frozen=True)
class Past:
    """What is known of a run's rounds.

    Attributes:
        adapters: SHA-256 by round; 0 is the one it started from. After the round from which a run
            went back, the adapter that it went back to.
        scores: By round, evaluated on somebody's texts; of one evaluated again the newest.
        best: The round whose adapter was right most often when it was evaluated, of equals the
            newest: the one that is kept (`upkeep.retention`); and how right. None of no evaluation.
        best_sha256: SHA-256 of what was evaluated then: where a run went back to an earlier round
            from its best one, `adapters` no longer says so. Empty in journals that were folded
            before that was kept.
        lost: By round, the share of the mean's squared norm that the run's rank left out, where
            something is.
    """

    adapters: Mapping[int, str] = field(default_factory=dict)
    scores: Mapping[int, Score] = field(default_factory=dict)
    best: tuple[int, Score] | None = None
    lost: Mapping[int, float] = field(default_factory=dict)
    best_sha256: str = ""

    def plus(self, news: "Past") -> "Past":
        scores = {**self.scores, **news.scores} if news.scores else self.scores
        adapters = {**self.adapters, **news.adapters} if news.adapters else self.adapters
        lost = {**self.lost, **news.lost} if news.lost else self.lost
        best = better(self.best, news.best)
        best_sha256 = self.best_sha256 if best is self.best else news.best_sha256
        return Past(adapters, scores, best, lost, best_sha256)

    def newest(self, most: int) -> "Past":
        """Of so many of the newest rounds, of the first adapter, and of the best one."""
        if len(self.adapters) <= most:
            return self
        last = max(self.adapters)
        kept = {0, self.best_round or 0, *range(last - most + 1, last + 1)}
        adapters = {index: one for index, one in self.adapters.items() if index in kept}
        scores = {index: one for index, one in self.scores.items() if index in kept}
        lost = {index: one for index, one in self.lost.items() if index in kept}
        return Past(adapters, scores, self.best, lost, self.best_sha256)

    @property
    def best_round(self) -> int | None:
        return self.best[0] if self.best else None

    def adapter_of(self, index: int) -> str:
        """A round's adapter; of the best one what was evaluated, wherever the run went since."""
        is_known = index == self.best_round and self.best_sha256
        return self.best_sha256 if is_known else self.adapters[index]


NOTHING = Past()


def better(
    known: tuple[int, Score] | None, newer: tuple[int, Score] | None
) -> tuple[int, Score] | None:
    """The better one of two rounds, of equals the newer."""
    if known is None or newer is None:
        return newer or known
    return newer if is_as_good(newer[1], known[1]) else known


def news_of(before: State, event: Event, after: State) -> Past:
    """What an event adds to what is known of the rounds; `NOTHING` where it adds nothing.

    Args:
        before: The run's state before the event.
        event: What happened; not what stands for others.
        after: The run's state after it.
    """
    is_used_up = isinstance(event, Finished) and after.round_index > before.round_index
    if isinstance(event, RolledBack) or is_used_up:
        return Past({after.round_index: after.adapter_sha256})
    if not isinstance(event, StepClosed) or before.step is None:
        return NOTHING
    kind, index = before.step.opened.kind, before.step.opened.round_index
    if before.step.opened.brings_files:
        lost = {} if event.lost is None else {index: event.lost}
        return Past({index: after.adapter_sha256}, lost=lost)
    if kind == "evaluate" and index in after.scores:
        score = after.scores[index]
        asked = before.step.opened.adapter_sha256
        return Past({}, {index: score}, (index, score), best_sha256=asked)
    return NOTHING


def past_of(event: Folded) -> Past:
    """What a journal that was folded still knows of its rounds."""
    return msgspec.convert(event.past, Past, str_keys=True)


def history_of(adapter_sha256: str, events: Iterable[Event]) -> tuple[State, Past]:
    """How a run stands that started from an adapter, and what is known of its rounds."""
    state, past = State(adapter_sha256), Past({0: adapter_sha256})
    for event in events:
        before, state = state, evolve(state, event)
        if isinstance(event, Folded):
            past = past_of(event)
        elif (news := news_of(before, event, state)) is not NOTHING:
            past = past.plus(news)
    return state, past


LONG = 2000  # events; of two devices about 200 rounds
TIMES = 4  # as many answers as the newest steps ask for: what is written then is a part of those


def is_long(events: int, steps: Sequence[StepOpened]) -> bool:
    """Whether a journal is folded.

    Args:
        events: How many it holds.
        steps: The newest ones; what stands for the events before repeats them.
    """
    return events >= LONG + TIMES * sum(len(opened.members) for opened in steps)


def folded_from(
    events: int,
    state: State,
    past: Past,
    shelf: dict[str, Any],
    steps: Iterable[StepOpened],
    counted: Iterable[str],
) -> Folded:
    """The event that stands for all so far; see `events.Folded`."""
    return Folded(events, to_plain(state), to_plain(past), shelf, tuple(steps), tuple(counted))


def to_plain(known: object) -> dict[str, Any]:
    """What is known, as plain JSON that `msgspec.convert` reads back equal."""
    plain: dict[str, Any] = msgspec.to_builtins(
        known, str_keys=True, enc_hook=_mapping, order="sorted"
    )
    return plain


def _mapping(known: object) -> object:
    if isinstance(known, Mapping):
        return dict(known)
    raise TypeError(f"{type(known).__name__} is not JSON")


def without(events: Iterable[Event], gone: Collection[str]) -> list[Event]:
    """The beginning of a journal in which some devices have no part, for exact unlearning.

    It ends before the first step that asked one of them to train or to label, and before what was
    decided after one of them was asked to evaluate. Law: it holds no answer of theirs, and nothing
    in it was decided by one.

    Args:
        events: The journal.
        gone: Ids of the devices.

    Returns:
        As many of its events as that, and all of them, equal, where the devices have no part in it;
        none where a folded journal tells of them.
    """
    kept, works = list[Event](), dict[str, str]()
    for event in events:
        if isinstance(event, Folded) and any(name in encode_event(event) for name in gone):
            return []
        if isinstance(event, AlsoAsked) and any(name in gone for _, name in event.members):
            break
        if works and isinstance(event, StepOpened | RolledBack | Finished):
            break
        if isinstance(event, StepOpened):
            works = {work_id: name for work_id, name in event.members if name in gone}
            if works and (event.kind != "evaluate" or len(works) == len(event.members)):
                break
            others = tuple(one for one in event.members if one[0] not in works)
            if works:  # who was asked stands for fewer, too
                left = max(0, event.population - len(works))
                event = replace(event, members=others, population=left)
        is_theirs = isinstance(event, LossTold | Left | Returned) and event.device_id in gone
        if not is_theirs and not (isinstance(event, Answered) and event.work_id in works):
            kept.append(event)
    return kept
