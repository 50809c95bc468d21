"""What is said of a run's rounds, and of an experiment's; the state machine reads it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.scheduling.step import Asynchronous
from edge_client.errors import WrongInput, demand
from edge_client.updates.forms import steps_of
from edge_client.updates.settings import Updates, steps_of_run
from edge_client.wire.labelling import Labelling
from edge_client.wire.training import Training


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What is trained and how it is judged, said alike of runs and of experiments.

    Attributes:
        adapter: Adapter spec, such as `lora:8@q,v`; in a file that says none with a head where the
            task needs one.
        prompt_init: Text a soft prompt starts from; empty for random words.
        training: How a device trains in one round.
        learning: How the coordinator learns from a round.
        updates: In how many bytes updates and steps travel.
        labelling: How devices label their own texts; None if they do not.
        rounds: Server steps until the run is finished.
        evaluate_every: Rounds between evaluations; 0 for only before the first and after the last.
        evaluate_share: Share of its test texts that a device evaluates on, drawn in each round;
            after the last round it is all of them.
        patience: Evaluations in a row without an improvement that end the run; 0: none do.
        keep: Which adapter is the run's in the end: the `last`, or the `best` of those that were
            evaluated.
        norm_bound: Norm down to which longer updates are scaled; `adaptive` follows the rounds'
            medians, 0 lets in any.
        max_examples: Largest weight of a device in a mean; `adaptive` follows the rounds'
            medians, 0 lets in any.
        seed: Root seed of the run.
    """

    adapter: str = "lora:8@q,v"
    prompt_init: str = ""
    training: Training = field(default_factory=Training)
    learning: Learning = field(default_factory=Learning)
    updates: Updates = field(default_factory=Updates)
    labelling: Labelling | None = None
    rounds: int = 10
    evaluate_every: int = 1
    evaluate_share: float = 1.0
    patience: int = 0
    keep: Literal["best", "last"] = "last"
    norm_bound: float | Literal["adaptive"] = "adaptive"
    max_examples: int | Literal["adaptive"] = "adaptive"
    seed: int = 0

    def check_spec(self, kind: type[WrongInput]) -> None:
        """Refuse what neither a run nor an experiment may say.

        Raises:
            WrongInput: As the given kind; names the value.
        """
        demand(0 <= self.patience <= 1_000_000, "patience: 0 to 1000000", kind)
        demand(self.evaluate_every >= 0, "evaluate_every: 0 or more", kind)
        demand(0.0 < self.evaluate_share <= 1.0, "evaluate_share: above 0 to 1", kind)
        demand(self.keep in ("best", "last"), "keep: best or last", kind)
        demand(
            self.norm_bound == "adaptive" or 0.0 <= self.norm_bound < 1e38,
            "norm_bound: `adaptive`, a number above 0, or 0 for none",
            kind,
        )
        demand(
            self.max_examples == "adaptive" or 0 <= self.max_examples <= 10**9,
            "max_examples: `adaptive`, 1 to 10^9, or 0 for any",
            kind,
        )
        demand(0 <= self.seed < 2**63, "seed: 0 to 2^63 - 1", kind)
        demand(
            not (steps_of(self.adapter) and self.updates.down.startswith("topk")),
            f"updates: down = {self.updates.down}: adapter {self.adapter} is written anew after "
            "round 1, of which top-k would leave most out; int8 or int4 is expected",
            kind,
        )


@dataclass(frozen=True, kw_only=True)
class Schedule(RunSpec, ABC):
    """How the rounds of a run follow each other; what its state machine reads.

    Attributes:
        fraction: C of FedAvg, share of the devices asked per round, above 0 and at most 1.
        max_cohort: Most devices asked to train in a round; 0 for no cap.
        over_selection: How many times the cohort is asked to train, 1 or more: a round closes when
            as many as the cohort are done, and the others come too late.
        min_clients: Devices that must have asked for work before the first round.
        min_updates: Updates without which no round is closed.
        deadline_s: Seconds after which a step stops waiting for those who have not answered.
        adaptive_deadline: Whether a step waits no longer than a multiple of what the steps before
            it took nearly all devices that answered.
        evaluate_cohort: Devices asked to evaluate an adapter; 0 for all that are there.
        asynchronous: How rounds go on without waiting for all; None if they do not. It decides who
            is asked in the place of `fraction`, `max_cohort` and `over_selection`.
    """

    fraction: float = 1.0
    max_cohort: int = 0
    over_selection: float = 1.0
    min_clients: int = 2
    min_updates: int = 1
    deadline_s: float = 600.0
    adaptive_deadline: bool = True
    evaluate_cohort: int = 0
    asynchronous: Asynchronous | None = None

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The task's labels."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of task, which says what adapters are judged by."""

    @property
    def update_steps(self) -> tuple[str, ...]:
        """What devices' updates go through, step by step."""
        return steps_of_run(self.training, self.updates, steps_of(self.adapter))
