"""What a run's journal tells of its rounds: each one's adapter, and how right it was."""

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.rounds.events import Event, RolledBack, StepClosed
from coordinator.rounds.scoring import Score, is_below
from coordinator.rounds.state import State, evolve


@dataclass(frozen=True)
class History:
    """A run's rounds.

    Attributes:
        state: Where it stands now.
        adapters: SHA-256 by round; 0 is the one it started from. After the round from which a run
            went back, the adapter that it went back to.
        scores: By round, evaluated on somebody's texts; of one evaluated again the newest.
        best: The round whose adapter was right most often when it was evaluated, of equals the
            newest: the one that is kept (`upkeep.retention`). None of no evaluation.
    """

    state: State
    adapters: dict[int, str]
    scores: dict[int, Score]
    best: int | None = None


def is_as_good(newer: Score, older: Score) -> bool:
    """Whether a share is at least another; in whole numbers, so exact."""
    return not is_below(newer, older)


def history_of(adapter_sha256: str, events: Iterable[Event]) -> History:
    """The rounds of a run that started from an adapter."""
    state = State(adapter_sha256)
    adapters, scores = {0: adapter_sha256}, dict[int, Score]()
    best: tuple[int, Score] | None = None
    for event in events:
        step = state.step
        state = evolve(state, event)
        if isinstance(event, RolledBack):
            adapters[state.round_index] = event.adapter_sha256
        if isinstance(event, StepClosed) and step is not None:
            index = step.opened.round_index
            if step.opened.kind == "train":
                adapters[index] = state.adapter_sha256
            elif step.opened.kind == "evaluate" and index in state.scores:
                score = scores[index] = state.scores[index]
                best = (index, score) if best is None or is_as_good(score, best[1]) else best
    return History(state, adapters, scores, best[0] if best else None)
