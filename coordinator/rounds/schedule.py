"""What the state machine of a run is told of its configuration."""

from typing import Literal, Protocol

from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.scheduling.step import Asynchronous
from edge_client.updates.settings import Updates
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training


class Schedule(Protocol):
    """How the rounds of a run follow each other; see `coordinator.config.RunConfig`."""

    @property
    def rounds(self) -> int:
        """Server steps until the run is finished."""

    @property
    def fraction(self) -> float:
        """C of FedAvg, share of the devices asked per round."""

    @property
    def max_cohort(self) -> int:
        """Most devices asked to train in a round; 0 for no cap."""

    @property
    def over_selection(self) -> float:
        """How many times the cohort is asked to train; the first of them count."""

    @property
    def updates(self) -> Updates:
        """What devices' updates are coded as."""

    @property
    def update_steps(self) -> tuple[str, ...]:
        """What devices' updates go through, step by step."""

    @property
    def patience(self) -> int:
        """Evaluations in a row without an improvement that end the run; 0: none do."""

    @property
    def asynchronous(self) -> Asynchronous | None:
        """How rounds go on without waiting, if they do."""

    @property
    def min_clients(self) -> int:
        """Devices that must be there before the first round."""

    @property
    def min_updates(self) -> int:
        """Updates without which no round is closed."""

    @property
    def deadline_s(self) -> float:
        """Seconds after which a step stops waiting."""

    @property
    def adaptive_deadline(self) -> bool:
        """Whether a step waits no longer than steps before it lead to expect."""

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations; 0 for only before the first and after the last."""

    @property
    def evaluate_cohort(self) -> int:
        """Devices asked to evaluate an adapter; 0 for all."""

    @property
    def evaluate_share(self) -> float:
        """Share of its test texts that a device evaluates on; on all after its last round."""

    @property
    def keep(self) -> Literal["best", "last"]:
        """Which adapter is the run's: the best of those that were evaluated, or the last."""

    @property
    def norm_bound(self) -> float | Literal["adaptive"]:
        """Norm down to which longer updates are scaled; 0 for none."""

    @property
    def max_examples(self) -> int | Literal["adaptive"]:
        """Largest weight of a device in a mean; 0 for any."""

    @property
    def learning(self) -> Learning:
        """How the coordinator learns from a round."""

    @property
    def training(self) -> Training:
        """How devices train in one round."""

    @property
    def labelling(self) -> Labelling | None:
        """When devices label their texts, if they do."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> str:
        """The kind of task, which says what adapters are judged by."""

    @property
    def seed(self) -> int: ...
