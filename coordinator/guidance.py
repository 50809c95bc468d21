"""What the coordinator tells devices of the population, beside what it asks of them.

A device sees its own few texts; how sure the model is of each class in general, and how many labels
of each class there are already, it can only be told.
"""

from dataclasses import dataclass

from coordinator.journal import StepOpened
from coordinator.rounds import State, labels_with, thresholds_before
from coordinator.schedule import Schedule
from edge_client.labelling import keep_in


@dataclass(frozen=True)
class Guidance:
    """For one step; the fields are those of `edge_client.wire.Work`."""

    keep: float = 0.0
    prior: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()


def guidance_of(schedule: Schedule, state: State, opened: StepOpened) -> Guidance:
    """What goes with the work of an open step; the same for every device and until it closes.

    Args:
        schedule: The run's.
        state: With the step open.
        opened: The step.
    """
    labelling = schedule.labelling
    if labelling is None:
        return Guidance()
    keep = keep_in(labelling, max(1, opened.round_index), schedule.rounds)
    thresholds = thresholds_before(schedule, state, opened.round_index)
    if opened.kind != "label":
        return Guidance(keep, (), thresholds)
    _, evaluated = labels_with(labelling, state)
    return Guidance(keep, state.priors.get(evaluated, ()), thresholds)
