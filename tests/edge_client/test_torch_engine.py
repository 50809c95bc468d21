from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge_client.adapters import initial_adapter, parse_adapter
from edge_client.base import Base
from edge_client.engine import Engine, open_engine
from edge_client.tasks import Task
from edge_client.texts import Example
from edge_client.trainer import train
from edge_client.wire import Training, WireError, encode_adapter

torch = pytest.importorskip("torch")
AdamW = pytest.importorskip("edge_client.torch_engine").AdamW

SPECS = ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:4", "bias", "head", "lora:2+head"]
TEXTS = [
    Example("the front door opened", label="security"),
    Example("parcel at the gate", label="mail"),
    Example("dinner with grandma at seven, bring the cake please", label="family"),
    Example("storm", label="weather"),
    Example("the heating used twelve units today", label="power"),
    Example("take the pills", label="health"),
]


def engine_of(base: Base, task: Task, name: str, lr: float = 0.01) -> Engine:
    spec = parse_adapter(name)
    engine = open_engine("torch", base, task, spec, Training(lr=lr, tokens=48))
    engine.load_adapter(initial_adapter(spec, base, len(task.labels), seed=3))
    return engine


def frozen_tensors(network: Any) -> list[Any]:
    """All numbers of the base that the network holds, or sees through the map."""
    linears = [linear for layer in network._layers for linear in layer.linears.values()]
    norms = [n for layer in network._layers for n in (layer.attention_norm, layer.output_norm)]
    biases = [part.bias for part in (*linears, *norms) if not part.bias.requires_grad]
    return [*(linear.matrix.data for linear in linears), *(n.weight for n in norms), *biases]


@pytest.mark.parametrize("name", SPECS)
def test_the_adapter_that_was_loaded_is_the_one_that_comes_back(
    tiny_base: Base, hub_task: Task, name: str
) -> None:
    state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=3)
    adapter = engine_of(tiny_base, hub_task, name).adapter()
    assert encode_adapter(adapter) == encode_adapter(state)


@pytest.mark.parametrize("name", SPECS)
def test_every_adapter_tensor_moves_and_the_base_does_not(
    tiny_base: Base, hub_task: Task, name: str
) -> None:
    engine = engine_of(tiny_base, hub_task, name)
    network = engine._network  # type: ignore[attr-defined]
    frozen = [p.clone() for p in frozen_tensors(network)]
    before = engine.adapter()
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    after = engine.adapter()
    assert all((after[tensor] != before[tensor]).any() for tensor in before)
    assert len(frozen) > 16 and all(map(torch.equal, frozen_tensors(network), frozen))


@pytest.mark.parametrize("name", ["lora:4", "prompt:4", "lora:2+head"])
def test_two_equal_trainings_are_bitwise_equal(tiny_base: Base, hub_task: Task, name: str) -> None:
    deltas = [
        train(
            engine_of(tiny_base, hub_task, name), TEXTS, Training(epochs=3, batch=2), seed=9
        ).delta
        for _ in range(2)
    ]
    assert encode_adapter(deltas[0]) == encode_adapter(deltas[1])


def test_a_resident_engine_trains_as_a_fresh_one(tiny_base: Base, hub_task: Task) -> None:
    fresh, used = (engine_of(tiny_base, hub_task, "lora:4") for _ in range(2))
    start = used.adapter()
    train(used, TEXTS, Training(epochs=2), seed=5)
    used.load_adapter(start)
    deltas = [train(engine, TEXTS, Training(epochs=2), seed=6).delta for engine in (fresh, used)]
    assert encode_adapter(deltas[0]) == encode_adapter(deltas[1])


def test_predictions_are_log_probabilities_in_the_given_order(
    tiny_base: Base, hub_task: Task
) -> None:
    engine = engine_of(tiny_base, hub_task, "lora:4")
    rows = engine.predict(TEXTS)
    np.testing.assert_allclose(np.exp(rows).sum(axis=1), 1.0, rtol=1e-5)
    alone = np.concatenate([engine.predict([text]) for text in TEXTS])
    np.testing.assert_allclose(rows, alone, rtol=1e-4, atol=1e-5)  # only padding differs


@pytest.mark.parametrize("name", ["lora:4", "prompt:4"])
def test_features_are_one_row_a_text_at_any_layer(
    tiny_base: Base, hub_task: Task, name: str
) -> None:
    engine = engine_of(tiny_base, hub_task, name)
    for layer in range(tiny_base.layers + 1):
        rows = engine.features(TEXTS, layer)
        assert rows.shape == (len(TEXTS), tiny_base.hidden)
        np.testing.assert_allclose(rows[3:4], engine.features(TEXTS[3:4], layer), atol=1e-5)


def test_an_adapter_of_another_shape_is_named(tiny_base: Base, hub_task: Task) -> None:
    engine = engine_of(tiny_base, hub_task, "lora:4")
    wrong = initial_adapter(parse_adapter("lora:2"), tiny_base, 6, seed=3)
    with pytest.raises(WireError, match="has shape"):
        engine.load_adapter(wrong)


def test_training_brings_the_loss_down(real_base: Base, hub_task: Task) -> None:
    engine = engine_of(real_base, hub_task, "lora:8", lr=0.005)
    first = train(engine, TEXTS, Training(epochs=1, batch=6), seed=1).loss
    last = train(engine, TEXTS, Training(epochs=12, batch=6), seed=1).loss
    assert last < first / 2


def test_one_step_by_any_plan_moves_the_adapter_alike(tiny_base: Base, hub_task: Task) -> None:
    steps = []
    for change in ({}, {"recompute": (0, 1)}, {"recompute": (1,)}, {"micro_batch": 2}):
        engine = engine_of(tiny_base, hub_task, "lora:4")
        engine.use(replace(engine.plan, **change))
        prompts, labels = engine.encoder.prompts(TEXTS), engine.encoder.labels(TEXTS)
        engine.train_step(engine.encoder.batch(prompts, labels))
        steps.append(engine.adapter())
    for name in steps[0]:
        for other in steps[1:]:
            np.testing.assert_allclose(steps[0][name], other[name], atol=2e-6)


def test_layers_below_the_plans_depth_stay_as_they_are(tiny_base: Base, hub_task: Task) -> None:
    engine = engine_of(tiny_base, hub_task, "lora:4")
    engine.use(replace(engine.plan, depth=1))
    before = engine.adapter()
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    moved = {name for name, tensor in engine.adapter().items() if (tensor != before[name]).any()}
    assert moved == {name for name in before if ".layer.1." in name}


def test_the_optimizer_is_torchs_own_adamw() -> None:
    ours, theirs = (torch.linspace(-1, 1, 12).view(3, 4).requires_grad_() for _ in range(2))
    resting = torch.ones(2, requires_grad=True)
    optimizer = AdamW({"a": ours, "b": resting}, lr=0.01, weight_decay=0.1)
    reference = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for step in range(20):
        gradient = torch.sin(torch.arange(12.0) + step).view(3, 4)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
    # The fused kernel divides by sqrt(v) in another order: a few units of the last place.
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert bool((resting == 1).all())
