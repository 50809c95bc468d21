"""SGD and the proximal term through a whole engine, with both backends."""

from dataclasses import replace

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of

SGD = Training(epochs=3, batch=3, lr=0.1, tokens=48, optimizer="sgd")
each_kind = pytest.mark.parametrize("kind", KINDS)


def delta_of(kind: str, base: Base, task: Task, training: Training) -> AdapterState:
    engine = engine_of(kind, base, task, "lora:2+head", training=training)
    return train(engine, TEXTS, training, seed=1).delta


def length(delta: AdapterState) -> float:
    return float(sum(np.square(tensor).sum() for tensor in delta.values()) ** 0.5)


@pytest.mark.few
@each_kind
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_proximal_term_shortens_the_way(
    tiny_base: Base, hub_task: Task, kind: str, optimizer: str
) -> None:
    training = replace(SGD, optimizer=optimizer, lr=0.1 if optimizer == "sgd" else 0.01)
    free = delta_of(kind, tiny_base, hub_task, training)
    held = delta_of(kind, tiny_base, hub_task, replace(training, proximal=2.0))
    assert 0 < length(held) < length(free)


@each_kind
def test_the_first_step_of_a_round_knows_no_proximal_term(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    """There the weights are those received."""
    one = replace(SGD, epochs=1, batch=len(TEXTS))
    free = delta_of(kind, tiny_base, hub_task, one)
    held = delta_of(kind, tiny_base, hub_task, replace(one, proximal=2.0))
    assert encode_adapter(held) == encode_adapter(free)


@pytest.mark.few(1)
@each_kind
def test_training_without_a_proximal_term_is_free_again(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2+head", training=SGD)
    start, found = engine.adapter(), list[bytes]()
    for proximal in (0.0, 2.0, 0.0):
        engine.load_adapter(start)
        trained = train(engine, TEXTS, replace(SGD, proximal=proximal), seed=1)
        found.append(encode_adapter(trained.delta))
    assert found[0] == found[2] != found[1]


@pytest.mark.skipif(len(KINDS) < 2, reason="one engine is installed")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_engines_go_the_same_way(tiny_base: Base, hub_task: Task, momentum: float) -> None:
    training = replace(SGD, momentum=momentum, proximal=0.5, weight_decay=0.01)
    one, other = (delta_of(kind, tiny_base, hub_task, training) for kind in KINDS)
    for name, tensor in one.items():  # sums in another order, over six steps
        np.testing.assert_allclose(other[name], tensor, rtol=1e-3, atol=2e-6)


@each_kind
def test_every_adapter_tensor_of_a_layer_moves(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine: Engine = engine_of(kind, tiny_base, hub_task, "lora:2", training=SGD)
    delta = train(engine, TEXTS, SGD, seed=1).delta
    assert all(tensor.any() for tensor in delta.values())
