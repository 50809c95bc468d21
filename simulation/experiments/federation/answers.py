"""Clients' answers as the coordinator takes them and notes them down."""

from dataclasses import replace
from itertools import repeat

from coordinator.rounds.admission import Refusal, check_update
from coordinator.rounds.events import Answered, StepOpened
from coordinator.rounds.measures import judged
from coordinator.rounds.scoring import Score as Told
from coordinator.rounds.scoring import scored
from edge_client.client.state import Answer
from edge_client.tasks.task import Task
from edge_client.wire.messages import Report, Work
from edge_client.wire.tensors import AdapterState, Update
from simulation.experiments.federation.schedule import Rounds
from simulation.experiments.scoring import Score, report_of


def admitted(
    finished: Answer, work: Work, reference: AdapterState, schedule: Rounds
) -> tuple[Answer, Update | None]:
    """An answer as the coordinator takes it: an update that cannot be used is a failure."""
    if finished.update is None:
        return finished, None
    try:
        known = reference, schedule, work.round_index
        return finished, check_update(finished.update, work.work_id, *known)
    except Refusal as refusal:
        failed = Report(work.work_id, "failed", failure="internal")
        return Answer(failed, None, refusal.detail), None


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
