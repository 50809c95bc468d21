"""What a federated run asks of its devices, and the errors that end it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from edge_client.client.state import Answer
from edge_client.errors import Failed
from edge_client.labelling.book import Book
from edge_client.updates.states import StepInputs
from edge_client.wire.messages import Report, Work
from simulation.experiments.federation.outcomes import NOTHING, Standing
from simulation.experiments.scoring import Score


class SimulationError(Failed):
    """An experiment that cannot go on; says why."""


class TooFew(SimulationError):
    """A round in which too few clients could train."""


class Devices(Protocol):
    """Virtual devices: the texts of all clients, and engines that take turns at them."""

    def start(self) -> Standing:
        """The adapter before the first round."""

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[Answer]:
        """Answer training or label work, in the order asked; who fails says so in its report.

        Args:
            adapter: What to start from.
            asked: Names and what is asked of them.
            inputs: What their update steps start from by name; nobody's: nothing.
        """

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        """Evaluate an adapter as devices do before they label; None where nobody labels."""

    def notes(self) -> Mapping[str, Book]:
        """What clients know of their unlabelled texts."""

    def recall(self, notes: Mapping[str, Book]) -> None:
        """Go on with notes of another time."""

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        """Score an adapter on a client's own test texts; for nobody, on all.

        Args:
            adapter: Encoded.
            arm: The client; empty for nobody.
            work: An evaluation that says which share of its texts each client draws; None: all.
        """

    def check(self, adapter: bytes, arm: str) -> Score | None:
        """Score an adapter on texts kept aside for early stopping; None where there are none."""

    def close(self) -> None:
        """Free the engines."""
