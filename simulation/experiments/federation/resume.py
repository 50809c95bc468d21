"""State of a federated run between rounds, beside its adapter; as bytes, to resume from.

A rollback forgets the server's state and what belongs to the abandoned adapters; what clients have
fetched stays with them. Where steps are coded, a client keeps the last adapter it was sent, as a
device does, and receives steps from it where they lead to the wanted one. A client that trains on
the adapter it was sent to evaluate fetches it once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from smidgen.coordinator.rounds.learning.memory import DeviceStates, Memory, encode_memory
from smidgen.coordinator.rounds.state import State
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.updates.masks import Ring
from smidgen.edge_client.updates.secure_sum import SecureSum
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import CodedStep, Report
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter


@dataclass(frozen=True)
class Adapter:
    """An adapter that a client holds.

    Attributes:
        sha256: Its SHA-256.
        step_bytes: What the steps took by which it came; 0: it came whole.
    """

    sha256: str
    step_bytes: int = 0


@dataclass(frozen=True)
class Fetched:
    """By client.

    Attributes:
        held: The last adapter that each was handed.
    """

    held: dict[str, Adapter] = field(default_factory=dict)

    def fetch(self, name: str, sha256: str, steps: Sequence[CodedStep]) -> None:
        """A client is handed an adapter, by the shortest way from what it holds.

        Args:
            name: The client.
            sha256: The adapter.
            steps: Lead to it, the oldest first.
        """
        held = self.held.get(name)
        if held is not None and held.sha256 == sha256:
            return
        taken = 0
        for step in reversed(steps):
            taken += step.step_bytes
            if held is not None and held.sha256 == step.start_sha256:
                self.held[name] = Adapter(sha256, taken)
                return
        self.held[name] = Adapter(sha256)

    def bytes_of(self, name: str, whole: int) -> int:
        """What it took to fetch what a client holds.

        Args:
            name: The client.
            whole: Size of the adapter.
        """
        held = self.held.get(name)
        return held.step_bytes if held is not None and held.step_bytes else whole


@dataclass
class Carried:
    """It grows with the clients that have trained.

    Attributes:
        server: What the server's optimizer and update steps go on from, encoded.
        shared: What update steps hand out to clients, encoded, by step.
        states: What each client's update steps go on from, encoded, by client and step.
        fetched: Which adapter each client holds.
    """

    server: bytes = b""
    shared: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)
    fetched: Fetched = field(default_factory=Fetched)

    def inputs(self, names: Collection[str], ring: Ring | None = None) -> Mapping[str, StepInputs]:
        """What clients' update steps start from.

        Args:
            names: The clients'.
            ring: Of secure aggregation, where a round has it.
        """
        shared = self.shared | ({SecureSum.name: ring.body} if ring else {})
        return {
            name: StepInputs(self.states.get(name, {}), shared, secret=name.encode())
            for name in names
        }

    def close(
        self, round_index: int, kept: DeviceStates, new: Mapping[str, Mapping[str, bytes]]
    ) -> None:
        """Take what clients made in a round, as far as it counts: that round is their last.

        Args:
            round_index: The round.
            kept: Which round's each client goes on from.
            new: New states, by client and step.
        """
        for name, states in new.items():
            for step, state in states.items():
                if kept.rounds.get(step, {}).get(name) == round_index:
                    self.states.setdefault(name, {})[step] = state

    def remember(self, memory: Memory, shared: Mapping[str, AdapterState]) -> None:
        """Keep what a round's server step gave for the next."""
        self.server = encode_memory(memory) if memory else b""
        self.shared = {step: encode_adapter(given) for step, given in shared.items()}

    def roll_back(self) -> None:
        """Forget what belongs to adapters that the run has left."""
        self.server, self.shared, self.states = b"", {}, {}


@dataclass(frozen=True)
class RunState:
    """What a run goes on from.

    Attributes:
        state: The run's state between two steps.
        books: Books of the clients that have labelled.
        gate: The last evaluation before clients label.
        good_adapter: What `state.good` names, encoded; empty where it knows of none.
        carried: What the last round left for the next; it grows with the clients that have trained.
    """

    state: State
    books: dict[str, LabelJournal]
    gate: Report
    good_adapter: bytes = b""
    carried: Carried = field(default_factory=Carried)


def remembered(run: RunState) -> bytes:
    """Everything that a run goes on from, encoded."""
    return msgspec.json.encode(run)


def recalled(memory: bytes) -> RunState:
    """The inverse of `remembered`, for every state between two steps."""
    return msgspec.json.decode(memory, type=RunState)
