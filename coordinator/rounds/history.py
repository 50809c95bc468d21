"""What a run's journal tells of its rounds: each one's adapter, and how right it was."""

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.rounds.events import Event, StepClosed
from coordinator.rounds.machine import State, evolve
from coordinator.rounds.scoring import Score


@dataclass(frozen=True)
class History:
    """A run's rounds.

    Attributes:
        state: Where it stands now.
        adapters: SHA-256 by round; 0 is the one it started from.
        scores: By round, of those that were evaluated on somebody's texts.
    """

    state: State
    adapters: dict[int, str]
    scores: dict[int, Score]

    @property
    def best(self) -> int | None:
        """The round whose adapter was right most often; of equals the newest."""
        best = None
        for index in sorted(self.scores):
            if best is None or is_as_good(self.scores[index], self.scores[best]):
                best = index
        return best


def is_as_good(newer: Score, older: Score) -> bool:
    """Whether a share is at least another; in whole numbers, so exact."""
    return newer.right * older.texts >= older.right * newer.texts


def history_of(adapter_sha256: str, events: Iterable[Event]) -> History:
    """The rounds of a run that started from an adapter."""
    state = State(adapter_sha256)
    adapters, scores = {0: adapter_sha256}, {}
    for event in events:
        step = state.step
        state = evolve(state, event)
        if isinstance(event, StepClosed) and step is not None:
            index = step.opened.round_index
            if step.opened.kind == "train":
                adapters[index] = state.adapter_sha256
            elif step.opened.kind == "evaluate" and index in state.scores:
                scores[index] = state.scores[index]
    return History(state, adapters, scores)
