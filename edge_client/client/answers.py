"""Computes a device's answer to one piece of work, given an engine and the starting adapter.

The client loop and the simulation both call it, so a simulated device is a real one without a
network: equal work gives equal bytes.
"""

import logging
from dataclasses import replace
from functools import partial

import numpy as np

from smidgen.edge_client.adapters.spec import net_in
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train, weight_of
from smidgen.edge_client.guest.steps import Keeper
from smidgen.edge_client.labelling.label_journal import Notes, TrainingDone
from smidgen.edge_client.labelling.label_work import (
    label,
    pseudo_texts,
    terms_of,
    training_forwards,
)
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts, capped, sampled, tests_of
from smidgen.edge_client.metering.work import phase
from smidgen.edge_client.personal.generator import teach
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.updates.forms import OF_MOMENTS, measured_in
from smidgen.edge_client.updates.ridge import FEW, MOMENTS, PRIOR
from smidgen.edge_client.updates.states import DeviceSteps, StepInputs, is_private, steps_of
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import AdapterState, Update, derive_seed, encode_update

log = logging.getLogger(__name__)


def answer(
    engine: Engine,
    start: AdapterState,
    own: OwnTexts,
    work: Work,
    device_id: str,
    notes: Notes,
    keeper: Keeper | None = None,
    inputs: StepInputs | None = None,
) -> FinishedWork:
    """Do a piece of work; its report, costs of time and traffic not filled in, and its update.

    Args:
        engine: Of the work's adapter.
        start: The adapter to start from.
        own: The device's texts.
        work: What is asked.
        device_id: The device.
        notes: What it knows of its unlabelled texts.
        keeper: Knows where training was left; None: it never is.
        inputs: What the work's update steps start from; None: nothing yet.

    Raises:
        TrainingError: No texts to train on, or the loss is no longer finite.
    """
    before = engine.layer_forwards
    if net_in(work.adapter_spec):
        finished = _of_net(engine, start, own, work, device_id, inputs)
        spent = engine.layer_forwards - before
        return _told(work, finished, spent)
    engine.load_adapter(start)
    if work.kind == "train":
        finished = _train(engine, start, own, work, device_id, notes, keeper, inputs)
    elif work.kind == "label":
        finished = FinishedWork(label(engine, own, terms_of(work), notes), None)
    else:
        finished = _evaluate(engine, own.data, work, device_id)
    spent = finished.report.layer_forwards + engine.layer_forwards - before
    return _told(work, finished, spent)


def _told(work: Work, finished: FinishedWork, spent: int) -> FinishedWork:
    """With its layer-forwards, and without a loss of training that no noise was added to."""
    is_told = not (work.kind == "train" and is_private(work))
    loss = finished.report.loss if is_told else None
    report = replace(finished.report, layer_forwards=spent, loss=loss)
    return replace(finished, report=report)


def _train(
    engine: Engine,
    start: AdapterState,
    own: OwnTexts,
    work: Work,
    device_id: str,
    notes: Notes,
    keeper: Keeper | None,
    inputs: StepInputs | None,
) -> FinishedWork:
    """Train on the labelled texts, and on those with a pseudo-label; gold labels come first.

    Where a round draws its texts the update still weighs what all of them do: devices that draw
    equally many count by what they hold.
    """
    steps, context = steps_of(work, inputs), _context(work, inputs)
    if asked := measured_in(order.step for order in work.updates):
        return _measured(engine, own.data, work, asked, device_id, steps, context)
    seed = derive_seed(work.seed, "train", device_id, work.round_index)
    gold, terms = own.data.labelled, None if work.labelling is None else terms_of(work)
    pseudo, weights = pseudo_texts(own, terms, notes)
    texts, weighed = [*gold, *pseudo], [1.0] * len(gold) + weights
    is_sampled = work.training.least_samples > 0
    if is_sampled:
        rows = sampled(len(texts), work.training, seed)
    else:
        rows = capped([text.label for text in texts], len(gold), work.most, seed)
    trained = train(
        engine,
        [texts[row] for row in rows],
        work.training,
        seed,
        [weighed[row] for row in rows] if pseudo else None,
        keeper,
        partial(steps.correction, context=context),
        start,
    )
    if engine.budget is not None:
        engine.rest()  # what computing took has room for the update
    if terms is not None:
        _note(notes, TrainingDone(work.work_id, training_forwards(engine, terms, len(rows))))
    num_examples = trained.num_examples
    if is_sampled:
        num_examples = weight_of(len(texts), weighed if pseudo else None)
    update = Update(work.work_id, num_examples, trained.delta)
    report = Report(
        work.work_id,
        "done",
        num_examples,
        trained.loss,
        pseudo_labels=len(pseudo),
        layer_forwards=trained.earlier_forwards,
    )
    with phase("encode"):
        context = replace(context, optimizer_steps=trained.steps)
        body = encode_update(steps.outgoing(update, context))
    return FinishedWork(report, body, states=steps.states())


def _measured(
    engine: Engine,
    data: ClientData,
    work: Work,
    asked: str,
    device_id: str,
    steps: DeviceSteps,
    context: DeviceContext,
) -> FinishedWork:
    """Moments of the states of the texts labelled by hand, or a prior, in an update's place."""
    texts = data.labelled
    if asked == OF_MOMENTS:
        delta = {MOMENTS: engine.second_moments(texts)}
    else:
        held = data.unlabelled or texts  # of those LoRA does not know the labels that it is given
        drawn = np.random.Generator(np.random.PCG64(derive_seed(work.seed, "prior", device_id)))
        texts = tuple(held[row] for row in drawn.permutation(len(held))[:FEW])
        delta = {PRIOR: engine.prior(texts)}
    with phase("encode"):
        update = Update(work.work_id, len(texts), delta)
        body = encode_update(steps.outgoing(update, context))
    return FinishedWork(Report(work.work_id, "done", len(texts)), body, states=steps.states())


def _note(notes: Notes, done: TrainingDone) -> None:
    """Write down what a training took; on a full disk this life alone knows, and goes on."""
    try:
        notes.add(done)
    except OSError as error:
        log.warning("what the training of %s took is not kept: %s", done.work_id, error.strerror)
        notes.book.fold(done)


def _of_net(
    engine: Engine,
    start: AdapterState,
    own: OwnTexts,
    work: Work,
    device_id: str,
    inputs: StepInputs | None,
) -> FinishedWork:
    """Teach a net; nothing is to be evaluated, for it answers no text."""
    if work.kind != "train":
        return FinishedWork(Report(work.work_id, "done", labelled=len(own.data.labelled)), None)
    update, report = teach(engine, start, own, work, device_id)
    with phase("encode"):
        steps = steps_of(work, inputs)
        body = encode_update(steps.outgoing(update, _context(work, inputs)))
    return FinishedWork(report, body, states=steps.states())


def _context(work: Work, inputs: StepInputs | None) -> DeviceContext:
    """What update steps may know before training."""
    inputs = inputs or StepInputs()
    given = inputs.bytes_per_s, 0, inputs.secret, work.run_id
    return DeviceContext(work.training, work.round_index, *given)


def _evaluate(engine: Engine, data: ClientData, work: Work, device_id: str) -> FinishedWork:
    """Evaluate on the texts kept aside, or a share of them; who keeps none counts nothing.

    The report says too how many texts the device holds a gold label of: one that holds none is not
    asked to train.
    """
    report = Report(work.work_id, "done", labelled=len(data.labelled))
    if data.test:
        rows = tests_of(work, device_id, len(data.test))
        score = evaluate(engine, [data.test[row] for row in rows])
        report = replace(
            report,
            num_examples=score.num_examples,
            loss=score.loss,
            accuracy=score.accuracy,
            mean_log_probabilities=score.mean_log_probabilities if work.labelling else (),
            entities=score.entities,
        )
    return FinishedWork(report, None)
