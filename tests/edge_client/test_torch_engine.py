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

SPECS = ["lora:4", "lora:2@q,k,v,o,up,down", "prompt:4", "head", "lora:2+head"]
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
    model = engine._model  # type: ignore[attr-defined]
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    before = engine.adapter()
    train(engine, TEXTS, Training(epochs=2, batch=3), seed=1)
    after = engine.adapter()
    assert all((after[tensor] != before[tensor]).any() for tensor in before)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)


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
