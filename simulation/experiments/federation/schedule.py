"""An experiment's schedule for the run state machine, and admission of clients' answers."""

import math
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Literal

from smidgen.coordinator.rounds.admission import Refusal, check_update
from smidgen.coordinator.rounds.events import Answered, StepOpened
from smidgen.coordinator.rounds.schedule import RunSpec, Schedule
from smidgen.coordinator.rounds.scoring import Score as Told
from smidgen.coordinator.rounds.scoring import judged, scored
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.tasks.registry import DEFAULT
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import AdapterState, Update
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

    def is_gated(self, round_index: int) -> bool:
        """Whether clients label right after a round, so that its adapter is judged before."""
        every = self.labelling.infer_every if self.labelling else 0
        return every > 0 and round_index % every == 0 and round_index < self.rounds

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
        return finished, check_update(
            finished.update, work.work_id, reference, schedule, work.round_index
        )
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
