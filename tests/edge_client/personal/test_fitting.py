"""Training by a form, by both engines."""

import tracemalloc

import numpy as np
import pytest

from smidgen.edge_client.adapters.banks import LAMBDA, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.bank import Bank, bank_numbers, modules_of
from smidgen.edge_client.personal.fitting import FitTerms, Form, fit
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS, engine_of

TERMS = FitTerms(steps=12, batch=4, lr=0.01)


def bank_of(base: Base, task: Task, kind: str) -> tuple[Engine, AdapterState]:
    spec = bank_spec(parse_adapter("lora:4@q,k,v,o,up,down"), base.shape)
    engine = open_engine(kind, base, task, spec, Training(tokens=48))
    adapter = initial_adapter(spec, base, len(task.labels), seed=3)
    ones = {module: np.ones(4, np.float32) for module in modules_of(adapter)}
    return engine, bank_numbers(adapter, ones)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_arguments_give_equal_bytes_and_what_was_given_stays(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, numbers = bank_of(tiny_base, hub_task, kind)
    before = encode_adapter(numbers)
    first = fit(engine, Bank(), numbers, TEXTS, TERMS, 7)
    again = fit(engine, Bank(), numbers, TEXTS, TERMS, 7)
    assert encode_adapter(first.numbers) == encode_adapter(again.numbers)
    assert first.loss == again.loss and first.steps == 12
    assert encode_adapter(numbers) == before
    other = fit(engine, Bank(), numbers, TEXTS, TERMS, 8)
    assert encode_adapter(other.numbers) != encode_adapter(first.numbers)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_is_left_with_the_adapter_that_the_numbers_make(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, numbers = bank_of(tiny_base, hub_task, kind)
    found = fit(engine, Bank(), numbers, TEXTS, TERMS, 7).numbers
    assert encode_adapter(engine.adapter()) == encode_adapter(Bank().adapter(found))
    moved = [name for name in found if not np.array_equal(found[name], numbers[name])]
    assert set(moved) == set(numbers)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_numbers_stay(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine, numbers = bank_of(tiny_base, hub_task, kind)
    frozen = {name for name in numbers if name.endswith(LAMBDA)}
    found = fit(engine, Bank(), numbers, TEXTS, TERMS, 7, frozen).numbers
    assert {n for n in found if np.array_equal(found[n], numbers[n])} == frozen


@pytest.mark.parametrize("kind", KINDS)
def test_plain_lora_is_trained_as_the_engine_would(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task, "lora:2+head", training=Training(lr=0.01))
    start = engine.adapter()
    found = fit(engine, Form(), start, TEXTS, FitTerms(steps=5, batch=8, lr=0.01), 7).numbers
    engine.load_adapter(start)
    generator = np.random.Generator(np.random.PCG64(7))
    for _ in range(5):
        order = generator.permutation(len(TEXTS)).tolist()
        generator.permutation(1)
        rows = sorted(order, key=lambda row: len(engine.encoder.prompts(TEXTS)[row].ids))
        texts = [TEXTS[row] for row in rows]
        engine.train_step(engine.encoder.batch(engine.encoder.prompts(texts)))
    for name, tensor in engine.adapter().items():
        assert np.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine, numbers = bank_of(tiny_base, hub_task, kind)
    bank = Bank(alpha_s=0.0)  # its pull holds B where it is, with six texts
    early = fit(engine, bank, numbers, TEXTS, FitTerms(epochs=1, batch=6, lr=0.02), 7)
    late = fit(engine, bank, numbers, TEXTS, FitTerms(epochs=30, batch=6, lr=0.02), 7)
    assert late.loss < 0.8 * early.loss


def test_without_texts_there_is_one_line(tiny_base: Base, hub_task: Task) -> None:
    engine, numbers = bank_of(tiny_base, hub_task, "onnx")
    with pytest.raises(TrainingError, match="no labelled texts"):
        fit(engine, Bank(), numbers, [], TERMS, 0)
    with pytest.raises(ValueError, match="scale_lr"):
        FitTerms(scale_lr=0.0)


def test_it_takes_so_much_memory_for_each_number(tiny_base: Base, hub_task: Task) -> None:
    """Beside what the engine takes for its gradients."""
    spec = bank_spec(parse_adapter("lora:16@q,k,v,o,up,down"), tiny_base.shape)
    engine = open_engine("onnx", tiny_base, hub_task, spec, Training(tokens=48))
    adapter = initial_adapter(spec, tiny_base, 6, seed=3)
    ones = {module: np.ones(16, np.float32) for module in modules_of(adapter)}
    numbers = bank_numbers(adapter, ones)
    count = sum(one.size for one in numbers.values())
    terms = FitTerms(steps=2, batch=1, lr=0.01)
    fit(engine, Bank(), numbers, TEXTS[:1], terms, 0)  # the engine's own rooms are there
    tracemalloc.start()
    fit(engine, Bank(), numbers, TEXTS[:1], terms, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * count + 200_000
