"""A device's answer to one piece of work, given an engine that holds the adapter to start from.

The client loop and the simulation both answer by these functions, so a simulated device is a real
one without a network: equal work gives equal bytes.
"""

from collections.abc import Sequence
from dataclasses import replace

from edge_client import wire
from edge_client.engine import Engine
from edge_client.seeds import derive_seed
from edge_client.state import Finished
from edge_client.texts import Example
from edge_client.trainer import evaluate, train


def train_answer(
    engine: Engine, labelled: Sequence[Example], work: wire.Work, device_id: str
) -> Finished:
    """Train as asked; an update with its report, costs not filled in.

    Raises:
        TrainingError: No texts, or the loss is no longer finite.
    """
    seed = derive_seed(work.seed, "train", device_id, work.round_index)
    trained = train(engine, labelled, work.training, seed)
    update = wire.Update(work.work_id, trained.num_examples, trained.delta)
    report = wire.Report(work.work_id, "done", trained.num_examples, trained.loss)
    return Finished(report, wire.encode_update(update))


def evaluate_answer(engine: Engine, test: Sequence[Example], work: wire.Work) -> Finished:
    """Evaluate as asked; who keeps no texts aside says so and counts nothing."""
    if not test:
        return Finished(wire.Report(work.work_id, "done"), None)
    score = evaluate(engine, test)
    report = wire.Report(work.work_id, "done", score.num_examples, score.loss)
    return Finished(replace(report, accuracy=score.accuracy), None)
