"""Admission checks: every byte that a device sends is checked here before it can count.

Pure: a body, its headers and the work asked for go in; an update or a `Refusal` comes out.
"""

from collections.abc import Sequence

import numpy as np

from smidgen.coordinator.rounds.bounds import bounds_of
from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.learning.unmasking import sizes_asked, step_in
from smidgen.coordinator.rounds.schedule import Schedule
from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.masks import Ring
from smidgen.edge_client.updates.registry import made, naming, sent_shapes
from smidgen.edge_client.updates.secure_sum import SHARES, check_bytes, check_masked
from smidgen.edge_client.updates.shamir import SHARE_BYTES
from smidgen.edge_client.updates.step import ServerContext
from smidgen.edge_client.wire.messages import Report, WireError
from smidgen.edge_client.wire.reports import Failure
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    check_same_parameters,
    decode_update,
    shapes_of,
)

COUNTS = ("num_examples", "labelled", "pseudo_labels", "layer_forwards")
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Refusal(ValueError):
    """A request that is refused; the route answers with `status` and one line of `detail`.

    Args:
        status: The HTTP status.
        detail: Why, and what to do.
        again_s: Seconds after which the same request may be answered; 0 where that says nothing.
    """

    def __init__(self, status: int, detail: str, again_s: int = 0) -> None:
        super().__init__(detail)
        self.status, self.again_s = status, again_s
        self.detail = " ".join(detail.split())[:500]


def check_update(
    body: bytes,
    work_id: str,
    adapter: AdapterState,
    schedule: Schedule | None = None,
    round_index: int = 0,
    steps: Sequence[str] | None = None,
) -> Update:
    """Decode an update and check that it can be folded into the adapter it answers.

    Args:
        body: A safetensors file.
        work_id: The work it was sent for.
        adapter: What the device was given; names, shapes and the range of the sum are compared.
        schedule: The run, whose settings say how many steps are possible; None: they are not
            looked at.
        round_index: The round that it was trained in.
        steps: What the round's updates go through; None: what the run's usually do.

    Raises:
        Refusal: 422; says what is wrong with it.
    """
    try:
        if steps is None:
            steps = () if schedule is None else schedule.update_steps
        shapes = sent_shapes(steps, shapes_of(adapter), round_index)
        update = decode_update(body, shapes)
        check_same_parameters(update.delta, shapes)
    except WireError as error:
        raise Refusal(422, str(error)) from error
    if update.work_id != work_id:
        raise Refusal(422, f"the update is for work {update.work_id[:64]!r}, sent for {work_id!r}")
    if schedule is not None:
        _check_by_steps(update, steps, schedule, shapes_of(adapter))
    for name, tensor in update.delta.items():
        if name not in adapter:
            continue  # added to nothing; a step of the run has looked at it
        # A mean of states inside float32's range is inside it: no infinity can reach the adapter.
        if _largest(adapter[name]) + _largest(tensor) <= FLOAT32_MAX:
            continue  # nearly always, and a tenth of the work of adding them up
        if np.abs(adapter[name].astype(np.float64) + tensor).max() > FLOAT32_MAX:
            raise Refusal(422, f"tensor {name!r} would leave the range of float32")
    return update


def check_masked_update(
    body: bytes, work_id: str, opened: StepOpened, ring: Ring, shapes: Shapes
) -> Update:
    """Decode an update of secure aggregation; of what it says nobody sees anything.

    Args:
        body: A safetensors file.
        work_id: The work it was sent for.
        opened: The training step.
        ring: Its own.
        shapes: Of the adapter.

    Raises:
        Refusal: 422; says what is wrong with it.
    """
    step, sent = step_in(opened.updates), sent_shapes(opened.updates, shapes, opened.round_index)
    try:
        update = decode_update(body)
        if step is not None:
            check_masked(step, ring, update, sent)
    except WireError as error:
        raise Refusal(422, str(error)) from error
    if update.work_id != work_id:
        raise Refusal(422, f"the update is for work {update.work_id[:64]!r}, sent for {work_id!r}")
    return update


def check_shares(body: bytes, work_id: str, ring: Ring, place: int, included: list[int]) -> None:
    """Refuse an answer to an unmasking that no device gives.

    Args:
        body: A safetensors file.
        work_id: The work it was sent for.
        ring: The training step's.
        place: The device's.
        included: Places of the devices whose update came.

    Raises:
        Refusal: 422; says what is wrong with it.
    """
    try:
        update = decode_update(body)
        size = SHARE_BYTES * sum(sizes_asked(ring, place, included))
        check_bytes("an unmasking", update, {SHARES: (size,)})
    except WireError as error:
        raise Refusal(422, str(error)) from error
    if update.work_id != work_id:
        raise Refusal(422, f"the shares are for work {update.work_id[:64]!r}, not for {work_id!r}")


def _check_by_steps(
    update: Update, steps: Sequence[str], schedule: Schedule, shapes: Shapes
) -> None:
    """Refuse what a run's update steps say no honest device sends.

    Raises:
        Refusal: 422.
    """
    is_labelling = schedule.labelling is not None
    context = ServerContext(schedule.training, is_labelling=is_labelling, shapes=shapes)
    try:
        for step in made(steps):
            with naming(step):
                step.check(update, context)
    except (WrongInput, Failed) as error:
        raise Refusal(422, str(error)) from error


def counted(update: Update, norm: float, opened: StepOpened, schedule: Schedule) -> tuple[str, ...]:
    """The update steps whose state on the device counts with its update.

    Args:
        update: As it was let in.
        norm: Its length (`learning.length_of`).
        opened: The step that it answers.
        schedule: The run.

    Raises:
        Refusal: 422: a step of another package failed on it.
    """
    context = ServerContext(schedule.training, opened.round_index)
    share, names = bounds_of(opened).share(norm), list[str]()
    try:
        for step in made(opened.updates):
            with naming(step):
                if step.keeps and step.counts(update, norm, share, context):
                    names.append(step.name)
    except Failed as error:
        raise Refusal(422, str(error)) from error
    return tuple(names)


def _largest(tensor: np.ndarray) -> float:
    """The largest magnitude in a tensor, in double precision; 0 in an empty one."""
    return max(float(tensor.max()), -float(tensor.min())) if tensor.size else 0.0


def check_failure(failure: Failure | None) -> None:
    """Refuse a code that is the coordinator's own: it takes back what a device has answered.

    Raises:
        Refusal: 422.
    """
    if failure == "revoked":
        raise Refusal(422, "failure: only the coordinator says `revoked`; another code expected")


def check_report(report: Report, task: Task) -> None:
    """Refuse figures that cannot be: they are summed up later, where nobody could refuse them.

    Args:
        report: The report, as it came.
        task: The run's.

    Raises:
        Refusal: 422; names the figure.
    """
    check_failure(report.failure)
    for name in COUNTS:
        if not 0 <= (getattr(report, name) or 0) < 2**53:  # null where the device does not say
            raise Refusal(422, f"{name} is not between 0 and 2^53")
    if wrong := report.cost.wrong():
        raise Refusal(422, f"cost.{wrong[0]} is out of its range")
    if report.accuracy is not None and not 0.0 <= report.accuracy <= 1.0:
        raise Refusal(422, f"accuracy {report.accuracy:g} is not between 0 and 1")
    if report.loss is not None and not abs(report.loss) <= FLOAT32_MAX:
        raise Refusal(422, f"loss {report.loss:g} is not within float32's range")
    means, told = report.mean_log_probabilities, report.confidences
    kind = kind_of(task)
    num_labels = len(task.labels) if kind.is_one_label else 0
    # Within float32's range their weighted sum is finite, and so is the prior that devices get.
    if len(means) not in (0, num_labels) or not all(abs(mean) <= FLOAT32_MAX for mean in means):
        raise Refusal(422, f"mean_log_probabilities: {num_labels} numbers, or none, expected")
    num_labels = len(task.labels) if kind.is_labelled else 0
    if told is not None and len(told.counts) != num_labels:
        raise Refusal(422, f"confidences: counts of {num_labels} labels expected")
    _check_entities(report, task)


def _check_entities(report: Report, task: Task) -> None:
    """Refuse counts where none are asked for, and an evaluation without any where they are.

    No more are found than a kind has in so many examples (of tagging one in each word); of those
    that are there no such thing is known, for a text that is too long is not read to its end.
    """
    entities, kind = report.entities, kind_of(task)
    if entities is None:
        if kind.measure.is_counted and report.accuracy is not None:
            raise Refusal(
                422, f"entities: counts of {kind.measure.asked} expected with an accuracy"
            )
        return
    if not kind.measure.is_counted:
        raise Refusal(422, f"entities: none expected of a task of kind {kind.name}")
    if len(entities.there) != len(task.labels):
        raise Refusal(422, f"entities: counts of {len(task.labels)} types expected")
    if report.accuracy is None:
        raise Refusal(422, "entities: expected of an evaluation alone, with its accuracy")
    if sum(entities.found) > (most := kind.most_found(task, report.num_examples)):
        raise Refusal(422, f"entities: {most} {kind.measure.asked} found at most expected")
