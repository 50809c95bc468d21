"""What one round hands to the next beside the adapter: the server's memory, and what clients keep.

A roll-back forgets the server's memory and what goes with the adapters that were left; what clients
have fetched stays with them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coordinator.rounds.learning.kept import Kept
from coordinator.rounds.learning.memory import Memory, encode_memory
from edge_client.updates.states import StepInputs
from edge_client.wire.tensors import AdapterState, encode_adapter
from simulation.experiments.federation.fetched import Fetched


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

    def inputs(self, names: Collection[str]) -> Mapping[str, StepInputs]:
        """What clients' update steps start from."""
        return {name: StepInputs(self.states.get(name, {}), self.shared) for name in names}

    def close(self, round_index: int, kept: Kept, new: Mapping[str, Mapping[str, bytes]]) -> None:
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
