"""State of a federated run, beside its adapter, from which it can be resumed; as bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from coordinator.rounds.bounds import Medians
from coordinator.rounds.learning.memory import DeviceStates
from coordinator.rounds.scheduling.participation import Heard, Patience
from coordinator.rounds.scoring import Good, Score
from coordinator.rounds.state import State
from edge_client.labelling.label_journal import LabelJournal
from edge_client.wire.messages import Report
from edge_client.wire.reports import Confidences
from simulation.experiments.federation.carried import Carried


@dataclass(frozen=True)
class Memory:
    """The fields are those of `rounds.machine.State`, the clients' books, and the last gate.

    `carried` is what the last round left for the next; it grows with the clients that have trained.
    """

    scores: dict[int, Score]
    priors: dict[int, tuple[float, ...]]
    texts: dict[str, int]
    confidences: dict[str, Confidences]
    labelled: int
    books: dict[str, LabelJournal]
    gate: Report
    without_tests: frozenset[str] = frozenset()
    medians: Medians = field(default_factory=Medians)
    good: Good | None = None
    rollbacks: int = 0
    good_adapter: bytes = b""
    patience: Patience = field(default_factory=Patience)
    heard: dict[str, Heard] = field(default_factory=dict)
    kept: DeviceStates = field(default_factory=DeviceStates)
    carried: Carried = field(default_factory=Carried)


def remembered(
    state: State,
    books: Mapping[str, LabelJournal],
    gate: Report,
    good_adapter: bytes = b"",
    carried: Carried | None = None,
) -> bytes:
    """Everything that a run goes on from, encoded.

    Args:
        state: The run's state between two steps.
        books: Books of the clients that have labelled.
        gate: The last evaluation.
        good_adapter: What `state.good` names.
        carried: What the last round left for the next.
    """
    memory = Memory(
        dict(state.scores),
        dict(state.priors),
        dict(state.texts),
        dict(state.confidences),
        state.labelled,
        dict(books),
        gate,
        state.without_tests,
        state.medians,
        state.good,
        state.rollbacks,
        good_adapter,
        state.patience,
        dict(state.heard),
        state.kept,
        carried or Carried(),
    )
    return msgspec.json.encode(memory)


def best_in(memory: bytes) -> bytes:
    """The best adapter that a run knew of, encoded; empty where it knew none."""
    return msgspec.json.decode(memory, type=Memory).good_adapter


def recalled(memory: bytes, state: State) -> tuple[State, Memory]:
    """The inverse of `remembered`, for every state between two steps.

    Args:
        memory: What `remembered` gave.
        state: Adapters, rounds, and how many labelled texts clients hold.

    Returns:
        The state, and all that was remembered.
    """
    found = msgspec.json.decode(memory, type=Memory)
    known = replace(
        state,
        scores=found.scores,
        priors=found.priors,
        texts=found.texts or state.texts,
        confidences=found.confidences,
        labelled=found.labelled,
        without_tests=found.without_tests,
        medians=found.medians,
        good=found.good,
        rollbacks=found.rollbacks,
        patience=found.patience,
        heard=found.heard,
        kept=found.kept,
    )
    return known, found
