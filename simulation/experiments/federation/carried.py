"""What one round hands to the next beside the adapter: the server's memory, and what clients keep.

A roll-back forgets the server's memory and what goes with the adapters that were left; what clients
have fetched stays with them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coordinator.rounds.learning.kept import Kept
from coordinator.rounds.learning.memory import Memory, decode_memory, encode_memory, part_of
from coordinator.rounds.learning.scaffold import CONTROL, control_in
from edge_client.wire.control import Held
from edge_client.wire.tensors import encode_adapter
from simulation.experiments.federation.fetched import Fetched
from simulation.experiments.federation.outcomes import NOTHING


@dataclass
class Carried:
    """It grows with the clients that have trained.

    Attributes:
        server: What the server's optimizer and control variates go on from, encoded.
        variates: Each client's own control variate, encoded.
        residuals: What each client's coded updates left out, encoded.
        fetched: Which adapter each client holds.
    """

    server: bytes = b""
    variates: dict[str, bytes] = field(default_factory=dict)
    residuals: dict[str, bytes] = field(default_factory=dict)
    fetched: Fetched = field(default_factory=Fetched)

    def control(self) -> bytes:
        """The population's control variate, encoded; empty: zero."""
        found = control_in(part_of(decode_memory(self.server), CONTROL))
        return encode_adapter(found) if found else b""

    def helds(
        self, names: Collection[str], control: bytes, has_control: bool, is_coded: bool
    ) -> Mapping[str, Held]:
        """What clients go on from; nobody in a run that keeps nothing.

        Args:
            names: The clients.
            control: The population's control variate, encoded.
            has_control: Whether they train with control variates.
            is_coded: Whether their updates are coded.
        """
        if not (has_control or is_coded):
            return NOTHING
        own = {name: self.variates.get(name, b"") if has_control else None for name in names}
        return {name: Held(control, own[name], self.residuals.get(name, b"")) for name in names}

    def close(
        self,
        round_index: int,
        kept: Kept,
        variates: Mapping[str, bytes],
        residuals: Mapping[str, bytes],
    ) -> None:
        """Take what clients made in a round, as far as it counts.

        Args:
            round_index: The round.
            kept: Which round's each client goes on from.
            variates: New control variates.
            residuals: What new updates left out.
        """
        self.variates |= _of_round(round_index, kept.controls, variates)
        self.residuals |= _of_round(round_index, kept.residuals, residuals)

    def remember(self, memory: Memory) -> None:
        """Keep what a round's server step gave for the next."""
        self.server = encode_memory(memory) if memory else b""

    def roll_back(self) -> None:
        """Forget what belongs to adapters that the run has left."""
        self.server, self.variates, self.residuals = b"", {}, {}


def _of_round(index: int, last: Mapping[str, int], new: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Of what clients have made in a round, what counts: that round is their last."""
    return {name: one for name, one in new.items() if last.get(name) == index}
