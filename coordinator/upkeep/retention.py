"""Which blobs of a run are still needed, decided from its journal alone.

An update is needed until its step is closed, or in asynchronous rounds until it is in a version. Of
the adapters the first is kept, the last few, the best by evaluation, and those that devices may be
on their way with: what the newest steps asked them to start from, and asynchronous work that is not
over. All else may go. A `Shelf` is folded from the journal as the run's state is, and its size does
not grow with the run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from coordinator.rounds.events import Event, Folded, StepClosed, StepOpened
from coordinator.rounds.history import is_as_good
from coordinator.rounds.pace.standing import asynchronous
from coordinator.rounds.scoring import Score
from coordinator.rounds.state import State, evolve
from coordinator.upkeep.limits import KEEP_ROUNDS

STEPS_ON_THEIR_WAY = 3  # the open one and the last two: as long as the ledger knows their work


@dataclass(frozen=True)
class Shelf:
    """A run's adapters that somebody may still want.

    Attributes:
        keep_rounds: How many of the newest rounds keep theirs.
        recent: (round, SHA-256) of those, the newest last.
        best: SHA-256 of the best evaluated one; of equals the newest.
        best_score: How right it was; None where nothing was evaluated.
        asked: SHA-256 of what the newest steps start from.
        lower: SHA-256 of the same in lower ranks, of each of those steps.
    """

    keep_rounds: int = KEEP_ROUNDS
    recent: tuple[tuple[int, str], ...] = ()
    best: str | None = None
    best_score: Score | None = None
    asked: tuple[str, ...] = ()
    lower: tuple[tuple[str, ...], ...] = ()


def shelved(shelf: Shelf, before: State, event: Event, after: State) -> Shelf:
    """Fold one event.

    Args:
        shelf: The run's, before the event.
        before: The run's state before the event.
        event: What happened.
        after: The run's state after it.
    """
    if isinstance(event, Folded):
        known, most = msgspec.convert(event.shelf, Shelf), shelf.keep_rounds
        recent = known.recent[max(0, len(known.recent) - most) :]
        return replace(known, keep_rounds=most, recent=recent)
    if isinstance(event, StepOpened):
        asked = (*shelf.asked, event.adapter_sha256)[-STEPS_ON_THEIR_WAY:]
        lower = (*shelf.lower, tuple(name for _, name in event.lower))[-STEPS_ON_THEIR_WAY:]
        return replace(shelf, asked=asked, lower=lower)
    if not isinstance(event, StepClosed) or before.step is None:
        return shelf
    opened = before.step.opened
    if opened.kind == "train":
        recent = (*shelf.recent, (opened.round_index, after.adapter_sha256))
        return replace(shelf, recent=recent[max(0, len(recent) - shelf.keep_rounds) :])
    score = after.scores.get(opened.round_index) if opened.kind == "evaluate" else None
    if score is None or (shelf.best_score and not is_as_good(score, shelf.best_score)):
        return shelf
    return replace(shelf, best=opened.adapter_sha256, best_score=score)


def adapters_kept(shelf: Shelf, state: State) -> set[str]:
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
    answers = list(state.step.answers.values()) if state.step else []
    answers += [one.answer for one in state.underway.values() if one.answer]
    return {answer.update_sha256 for answer in answers if answer.update_sha256}


def blobs_kept(shelf: Shelf, state: State) -> set[str]:
    """All blobs of a run that stay, by SHA-256."""
    return adapters_kept(shelf, state) | updates_kept(state) | remembered_kept(state)


def remembered_kept(state: State) -> set[str]:
    """What a run's next round goes on from beside its adapter; also of a run that is finished."""
    return {state.memory_sha256} - {""} | beside(state)


def beside(state: State) -> set[str]:
    """What devices fetch beside adapters, or in their place."""
    coded = {step.step_sha256 for step in state.kept.steps}
    return coded | set(state.shared.values())


def of_finished(shelf: Shelf) -> Shelf:
    """What a finished run still needs: first, best and last adapter."""
    return replace(shelf, keep_rounds=0, recent=(), asked=(), lower=())


def folded(shelf: Shelf, state: State, events: Iterable[Event]) -> tuple[Shelf, State]:
    """Fold the events that came since."""
    for event in events:
        before, state = state, evolve(state, event)
        shelf = shelved(shelf, before, event, state)
    return shelf, state
