"""A simulated run's view of its devices: what rounds ask, give and cost, and errors that end it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.simulation.experiments.scoring import Score

NOTHING: Mapping[str, StepInputs] = MappingProxyType({})


@dataclass(frozen=True)
class Standing:
    """Where a run stands between two rounds.

    Attributes:
        adapter: Encoded adapter of the last closed round.
        round_index: That round; 0 before any training.
        evaluated: The last round whose adapter was evaluated, -1 for none.
        memory: What else is known; see `smidgen.simulation.experiments.federation.resume`.
    """

    adapter: bytes
    round_index: int = 0
    evaluated: int = -1
    memory: bytes = b""


@dataclass(frozen=True)
class Looking:
    """What a label step before a round gave and cost.

    Attributes:
        cohort: Clients asked.
        texts_read: Texts that they read.
        label_forwards: Layer-forwards of the step, counted.
        gate_forwards: Layer-forwards of the evaluation before it, counted.
        gate_accuracy: What that evaluation found; None without a gate.
        used_round: The round whose adapter labelled.
        thresholds: Least confidence of each class's pseudo-labels after it.
    """

    cohort: int
    texts_read: int
    label_forwards: int
    gate_forwards: int
    gate_accuracy: float | None
    used_round: int
    thresholds: tuple[float, ...]

    @property
    def forwards(self) -> int:
        """Layer-forwards of labelling and of the evaluation before it."""
        return self.label_forwards + self.gate_forwards


@dataclass(frozen=True)
class Between:
    """A client's way from the shared adapter (alpha = 0) to its own (1).

    Attributes:
        alpha: That it chose, by texts kept aside.
        right: Right answers to its test texts by alpha, of `interpolation.ALPHAS`.
    """

    alpha: float
    right: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """What a closed round gave and cost; round 0 is the evaluation before any training.

    Attributes:
        round_index: 1-based server step.
        cohort: Names of the clients asked.
        errors: What went wrong, by client.
        num_examples: Texts trained on, all clients together.
        loss: Mean training loss over clients weighted by their texts, nats; None in round 0.
        bytes_down: Adapters, or coded steps to them, handed out to the cohort (measured; headers of
            HTTP not included).
        bytes_up: Updates handed in, encoded (measured).
        layer_forwards: Layer-forwards of training, all clients together (measured: engines count).
        train_s: Seconds from the first piece of work to the new adapter (measured).
        standing: Where the run stands afterwards.
        score: The new adapter's score, where it was evaluated.
        looking: The label step before it, if there was one.
        reported: Accuracy by what devices told, where hostile ones are among them.
        trouble: What was done about the run: not taken, or gone back; empty of nothing.
        lost: Share of the mean's squared norm that the run's rank leaves out, where that is known.
        ranks: Each module's rank, where a client chose them for itself.
        between: How far a client went from the shared adapter, where it chose that.
        kept: The round whose adapter the run would end with now, where it keeps its best one.
        kept_score: That adapter's score by all test texts, where shares of them chose it and the
            run may end here.
    """

    round_index: int
    cohort: tuple[str, ...]
    errors: dict[str, str]
    num_examples: int
    loss: float | None
    bytes_down: int
    bytes_up: int
    layer_forwards: int
    train_s: float
    standing: Standing
    score: Score | None = None
    looking: Looking | None = None
    reported: float | None = None
    trouble: str = ""
    lost: float | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    between: Between | None = None
    kept: int | None = None
    kept_score: Score | None = None


class SimulationError(Failed):
    """An experiment that cannot go on; says why."""


class TooFew(SimulationError):
    """A round in which too few clients could train."""


class Devices(Protocol):
    """Virtual devices: the texts of all clients, and engines that take turns at them.

    Attributes:
        books: What clients know of their unlabelled texts, by their names; replaced when a run
            goes on.
    """

    books: dict[str, LabelJournal]

    def start(self) -> Standing:
        """The adapter before the first round."""

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        """Answer training or label work, in the order asked; who fails says so in its report.

        Args:
            adapter: What to start from.
            asked: Names and what is asked of them.
            inputs: What their update steps start from by name; nobody's: nothing.
        """

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        """Evaluate an adapter as devices do before they label; None where nobody labels."""

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
