"""A simulated run's view of its devices: what rounds ask, give and cost, and errors that end it.

Also the experiment's schedule for the run state machine, and which clients' answers are admitted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from types import MappingProxyType
from typing import Literal, Protocol

from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.events import Answered, StepOpened
from smidgen.coordinator.rounds.machine import labels_after
from smidgen.coordinator.rounds.schedule import RunSpec, Schedule
from smidgen.coordinator.rounds.scoring import Score as Told
from smidgen.coordinator.rounds.scoring import judged, scored
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.tasks.task import DEFAULT, Task
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import AdapterState, Update, decode_update
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.hostile import Hostile
from smidgen.simulation.experiments.scoring import Score, report_of


@dataclass(frozen=True, kw_only=True)
class Rounds(Schedule):
    """How an experiment's rounds follow each other, for as many clients as can train.

    With labelling adapters are evaluated whenever they are scored (every `score_every` rounds) or
    may be labelled with.
    """

    min_clients: int = 1
    deadline_s: float = math.inf
    adaptive_deadline: bool = False
    norm_bound: float | Literal["adaptive"] = 0.0
    max_examples: int | Literal["adaptive"] = 0
    labels: tuple[str, ...] = ()
    kind: str = DEFAULT
    score_every: int = 1
    is_guarded: bool = False
    hostile: Hostile | None = None

    def is_gated(self, round_index: int, solved: int) -> bool:
        """Whether clients label right after a round, so that its adapter is judged before."""
        said, is_last = self.labelling, round_index >= self.rounds
        return said is not None and not is_last and labels_after(said, round_index, solved)

    def is_scored(self, round_index: int) -> bool:
        """Whether an adapter that is evaluated after a round is scored on the test texts too."""
        every = self.score_every
        is_due = round_index % every == 0 if every else round_index == 0
        return is_due or round_index == self.rounds


def schedule_of(
    experiment: Experiment, clients: int, labels: tuple[str, ...] = (), kind: str = DEFAULT
) -> Rounds:
    """When whom is asked: the cohort, or all where fewer clients hold labelled texts.

    With labelling, adapters are evaluated whenever somebody is about to label too.

    Args:
        experiment: What is run.
        clients: That can train from the beginning.
        labels: The task's labels; needed with labelling.
        kind: The task's kind.
    """
    labelling, cohort = experiment.labelling, experiment.cohort
    fraction = min(1.0, cohort / max(1, clients)) if cohort else 1.0
    rounds = Rounds(
        **{one.name: getattr(experiment, one.name) for one in fields(RunSpec)},
        fraction=fraction,
        min_updates=experiment.learning.least,
        is_guarded=experiment.is_guarded,
        hostile=experiment.hostile,
        labels=labels if experiment.hostile or experiment.keep == "best" else (),
        kind=kind,
    )
    if labelling is None:
        return rounds
    return replace(
        rounds,
        fraction=1.0,
        evaluate_every=math.gcd(labelling.infer_every, experiment.evaluate_every),
        labels=labels,
        max_cohort=cohort,
        score_every=experiment.evaluate_every,
    )


def admitted(
    finished: FinishedWork, work: Work, reference: AdapterState, schedule: Rounds
) -> tuple[FinishedWork, Update | None]:
    """An answer as the coordinator takes it: an update that cannot be used is a failure."""
    if finished.update is None:
        return finished, None
    try:
        if schedule.updates.secured:
            return finished, decode_update(finished.update)
        steps = [order.step for order in work.updates]
        known = schedule, work.round_index, steps
        return finished, check_update(finished.update, work.work_id, reference, *known)
    except Refusal as refusal:
        failed = Report(work.work_id, "failed", failure="internal")
        return FinishedWork(failed, None, refusal.detail), None


def told_of(opened: StepOpened, found: Score, task: Task) -> Told:
    """What the coordinator makes of an evaluation in which each client tells of its own texts."""
    reports = [report_of("", found, name) for name in found.by_client]
    done = [Answered("", "done", None, report.num_examples) for report in reports]
    return scored(opened, map(judged, done, reports, repeat(task)))


def gate_answer(work_id: str, report: Report) -> Answered:
    """An evaluation as the coordinator notes it down."""
    right = None if report.accuracy is None else round(report.accuracy * report.num_examples)
    answer = Answered(work_id, "done", None, report.num_examples, right=right)
    return replace(answer, mean_log_probabilities=report.mean_log_probabilities)


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


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a round gave and cost, as it is known of any round and is written down of it.

    Attributes:
        round_index: 1-based server step; 0 is the evaluation before any training.
        num_examples: Texts trained on, all clients together.
        loss: Mean training loss over clients weighted by their texts, nats; None in round 0.
        bytes_down: Adapters, or coded steps to them, handed out to the cohort (measured; headers of
            HTTP not included).
        bytes_up: Updates handed in, encoded (measured).
        layer_forwards: Layer-forwards of training, all clients together (measured: engines count).
        train_s: Seconds from the first piece of work to the new adapter (measured).
        score: The new adapter's score, where it was evaluated.
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
    num_examples: int = 0
    loss: float | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    layer_forwards: int = 0
    train_s: float = 0.0
    score: Score | None = None
    reported: float | None = None
    trouble: str = ""
    lost: float | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    between: Between | None = None
    kept: int | None = None
    kept_score: Score | None = None


@dataclass(frozen=True, kw_only=True)
class Round(Figures):
    """A closed round; round 0 is the evaluation before any training.

    Attributes:
        cohort: Names of the clients asked.
        errors: What went wrong, by client.
        standing: Where the run stands afterwards.
        looking: The label step before it, if there was one.
    """

    cohort: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    standing: Standing
    looking: Looking | None = None


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
