"""Every client trains for itself and is judged by its own test texts, here or on a Ray cluster.

A client's adapter follows from the stage, its name and what the rounds before have given, and from
nothing else; so answers are equal wherever they are computed, and come back in the order asked.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edge_client.engine.engine import Engine
from edge_client.personal.interpolation import along
from edge_client.personal.methods import Own
from edge_client.tasks.kind import kind_of
from edge_client.texts.examples import ClientData
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import decode_adapter, encode_adapter
from simulation.experiments.federation.outcomes import Between, Round, Standing
from simulation.experiments.personal.methods import Asked, fitted
from simulation.experiments.scoring import Score, judged, score
from simulation.experiments.stage import Stage
from simulation.population.clients import Client


def own_round(on: Stage, asked: Asked) -> Round:
    """Train a client's own adapter and score it; a round with the client as its cohort.

    Args:
        on: An experiment with a personal phase.
        asked: The client.

    Raises:
        TrainingError: No labelled texts, or the loss is no longer finite.
    """
    start_s, index = time.perf_counter(), on.experiment.rounds + 1
    [client] = [one for one in on.population if one.name == asked.name]
    train = on.dataset.train
    labelled = tuple(train[row] for row in client.labelled)
    others = tuple(replace(train[row], label=None) for row in client.unlabelled)
    data = ClientData(labelled, others, ())
    seed = derive_seed(on.experiment.seed, "personal", client.name)
    with fitted(on, data, seed, asked) as own:
        forwards, train_s = own.layer_forwards, time.perf_counter() - start_s
        scored, body = _judged(on, own.engine, client), encode_adapter(own.engine.adapter())
        between = _between(on, own, client, asked.shared)
    return Round(
        round_index=index,
        cohort=(client.name,),
        errors={},
        num_examples=len(labelled),
        loss=own.loss,
        bytes_down=0,
        bytes_up=0,
        layer_forwards=forwards,
        train_s=train_s,
        standing=Standing(body, index, index),
        score=scored,
        ranks=own.ranks,
        between=between,
    )


def own_rounds(on: Stage, asked: Sequence[Asked], ray: str = "") -> Iterator[Round]:
    """As `own_round` for each, in order.

    Args:
        on: An experiment with a personal phase.
        asked: The clients.
        ray: Address of a Ray cluster whose processors do it; empty for this process.
    """
    if not ray:
        yield from (own_round(on, one) for one in asked)
        return
    from simulation.experiments.virtual.ray_devices import each  # only where it is wanted

    yield from each(ray, own_round, on, asked)


def _between(on: Stage, own: Own, client: Client, shared: bytes) -> Between | None:
    """How each step of the way from the shared adapter does, where the client went one."""
    if own.alpha is None or own.end is None:
        return None
    tests = [on.dataset.test[row] for row in client.test]
    way = along(own.engine, own.end, decode_adapter(shared), tests)
    right = tuple(round(at.found.accuracy * at.found.num_examples) for at in way)
    return Between(own.alpha, right)


def _judged(on: Stage, engine: Engine, client: Client) -> Score:
    tests = [on.dataset.test[row] for row in client.test]
    if not kind_of(on.dataset.task).is_one_label:
        return judged(engine, tests, {client.name: np.arange(len(tests))})
    labels = {label: row for row, label in enumerate(on.dataset.task.labels)}
    gold = np.array([labels[text.label or ""] for text in tests])
    spoken = [text.language for text in tests]
    return score(engine.predict(tests), gold, spoken, {client.name: np.arange(len(tests))})
