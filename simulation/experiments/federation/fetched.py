"""Which adapter of a run each client holds, and what it took to fetch, where steps are coded.

A client keeps the last adapter that it was handed, as a device does, and is led from it by steps
where they lead there. One that trains on what it was handed to evaluate fetches it once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from edge_client.wire.messages import CodedStep


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
