"""What personal forms stand on: gradients given away, adapters put in place, spread of states."""

from dataclasses import replace

import numpy as np
import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, SPECS, TEXTS, batch_of, engine_of

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.few]
SGD = Training(lr=0.5, tokens=48, optimizer="sgd", momentum=0.5)


@pytest.mark.parametrize("name", SPECS)
def test_gradients_are_those_that_a_step_goes_by(
    tiny_base: Base, hub_task: Task, kind: str, name: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, name, training=SGD)
    before, batch = engine.adapter(), batch_of(engine)
    loss, found = engine.gradients(batch)
    assert encode_adapter(engine.adapter()) == encode_adapter(before)
    assert engine.train_step(batch) == loss and set(found) == set(before)
    for part, after in engine.adapter().items():
        assert np.array_equal(after, before[part] - np.float32(0.5) * found[part])


def test_what_was_given_away_is_not_what_the_next_batch_fills(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2")
    batch = batch_of(engine)
    _, first = engine.gradients(batch)
    kept = encode_adapter(first)
    engine.train_step(batch)
    engine.gradients(batch)
    assert encode_adapter(first) == kept


def test_below_a_plans_depth_gradients_are_zeros(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2")
    engine.use(replace(engine.plan, depth=1))
    _, found = engine.gradients(batch_of(engine))
    assert set(found) == set(engine.adapter())
    lower = [tensor for name, tensor in found.items() if "layer.0." in name]
    assert lower and not any(tensor.any() for tensor in lower)


def test_an_adapter_is_put_in_place_beside_the_optimizer(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    plain, other = (engine_of(kind, tiny_base, hub_task, "lora:2", training=SGD) for _ in "12")
    batch = batch_of(plain)
    for engine in (plain, other):
        engine.train_step(batch)
    other.put(plain.adapter())
    for engine in (plain, other):
        engine.train_step(batch)
    assert encode_adapter(plain.adapter()) == encode_adapter(other.adapter())
    with pytest.raises(WireError):
        other.put({})


def test_the_spread_is_that_of_the_states(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2@q,v")
    found = engine.spread(TEXTS)
    assert found.shape == (engine.layers, 2) and (found[:, 1] > 0).all()
    # One text at a time there is no padding, and a mean over texts of one token count is plain.
    means = np.array([engine.features(TEXTS[:1], layer).mean() for layer in range(engine.layers)])
    assert np.allclose(engine.spread(TEXTS[:1])[:, 0], means, atol=1e-6)


def test_batches_and_padding_do_not_move_the_spread(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2")
    whole = engine.spread(TEXTS)
    engine.use(replace(engine.plan, micro_batch=1))
    assert np.allclose(engine.spread(TEXTS), whole, rtol=1e-5, atol=1e-6)
    unlabelled = [Example(text.text) for text in TEXTS]
    assert np.array_equal(engine.spread(unlabelled), engine.spread(TEXTS))
    prompted = engine_of(kind, tiny_base, hub_task, "prompt:4")
    assert np.allclose(prompted.spread(TEXTS)[0], whole[0], rtol=1e-2)  # places are other ones
