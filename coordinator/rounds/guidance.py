"""Guidance sent with work: population statistics that a device cannot know by itself.

A device sees only its own few texts: the model's confidence in each class, and how many labels of
each class there are, come from the coordinator.
"""

import hmac
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.machine import labels_with, thresholds_before
from smidgen.coordinator.rounds.schedule import Schedule
from smidgen.coordinator.rounds.selection import trainable
from smidgen.coordinator.rounds.state import State
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.updates.secure_sum import SecureSum
from smidgen.edge_client.updates.step import ServerContext
from smidgen.edge_client.wire.messages import StepOrder
from smidgen.edge_client.wire.training import keep_in

FEWEST = 8


@dataclass(frozen=True)
class Guidance:
    """One step's guidance; the fields are those of `smidgen.edge_client.wire.messages.Work`."""

    keep: float = 0.0
    prior: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    most: int = 0


def guidance_of(schedule: Schedule, state: State, opened: StepOpened) -> Guidance:
    """What goes with the work of an open step; the same for every device and until it closes.

    Args:
        schedule: The run's.
        state: The run's state, with the step open.
        opened: The step.
    """
    labelling = schedule.labelling
    if labelling is None:
        return Guidance()
    keep = keep_in(labelling, max(1, opened.round_index), schedule.rounds)
    thresholds = thresholds_before(schedule, state, opened.round_index)
    if opened.kind == "train":
        # Who draws its texts takes as many as any other, whatever it holds of a class; and where a
        # text may have several labels there are no classes to cap.
        is_sampled = schedule.training.least_samples > 0
        is_capped = not is_sampled and kind_named(schedule.kind).is_one_label
        most = most_of_a_class(state, thresholds) if is_capped else 0
        return Guidance(keep, (), thresholds, most)
    if opened.kind == "evaluate":
        return Guidance(keep, (), thresholds)
    _, evaluated = labels_with(labelling, state)
    return Guidance(keep, state.priors.get(evaluated, ()), thresholds)


def most_of_a_class(state: State, thresholds: Sequence[float]) -> int:
    """Most texts of one class that a device trains on in a round.

    What the median device can train on in all, and not fewer than 8: a device that holds far more
    of one class than others hold of all would answer for everybody.

    Args:
        state: What devices said.
        thresholds: Least confidence of a pseudo-label, by label.
    """
    found = trainable(state.texts, state.confidences, thresholds)
    return max(FEWEST, math.ceil(median(found))) if found else 0


def step_orders(
    state: State, opened: StepOpened, device_id: str, bytes_of: Callable[[str], int]
) -> tuple[StepOrder, ...]:
    """The update steps of a device's training, with the state that each goes on from.

    Args:
        state: The run's.
        opened: A training step, or one that unmasks.
        device_id: Who is asked.
        bytes_of: Sizes of blobs by their SHA-256.
    """
    orders = (StepOrder(step) for step in opened.updates)
    handed = {**state.shared, SecureSum.name: opened.handed(device_id)}
    known = ((one, state.kept.rounds.get(one.name, {}), handed.get(one.name)) for one in orders)
    return tuple(
        replace(
            order,
            round_index=rounds.get(device_id, 0),
            shared_sha256=shared or "",
            shared_bytes=bytes_of(shared) if shared else 0,
        )
        for order, rounds, shared in known
    )


def context_of(schedule: Schedule, state: State, opened: StepOpened, secret: str) -> ServerContext:
    """What update steps may know as a training step is aggregated."""
    return ServerContext(
        schedule.training,
        opened.round_index,
        opened.population,
        schedule.labelling is not None,
        state.kept.rounds,
        key=hmac.digest(secret.encode(), b"update steps", "sha256"),
    )
