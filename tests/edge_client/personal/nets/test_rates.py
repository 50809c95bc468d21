"""Learned rates: the net's gradients, what is exact and what they are good for."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.coordinator.rounds.learning.registry import weighted_mean
from smidgen.edge_client.adapters.banks import LINEARS, OWN, WEIGHT, RatesNet, bank_spec, rates_of
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterError, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.personal.fitting import (
    FitTerms,
    Form,
    Rated,
    fit,
    learned,
    rated_fit,
    slopes_of,
)
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_update,
    encode_adapter,
    encode_update,
)
from smidgen.edge_client.wire.training import Training
from tests.edge_client.engine.engines import KINDS, TEXTS

pytestmark = pytest.mark.few

NET = RatesNet(("a", "b", "c"), 4)
TRAIN, HELD_OUT = TEXTS[:4], TEXTS[4:]


def net_numbers(seed: int) -> AdapterState:
    """A net in the middle of learning; float64, away from the ends of its ranges."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found = {name: one.astype(np.float64) for name, one in NET.first(seed).items()}
    found[LINEARS[-1] + WEIGHT] = draw.normal(0.0, 0.005, found[LINEARS[-1] + WEIGHT].shape)
    found[OWN] = draw.uniform(0.5, 2.0, 3)
    return found


def opened(base: Base, task: Task, kind: str) -> tuple[Engine, AdapterState]:
    spec = bank_spec(parse_adapter("lora:2@q,v+head"), base.shape)
    engine = open_engine(kind, base, task, spec, Training(tokens=48))
    return engine, initial_adapter(spec, base, len(task.labels), seed=3)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_gradients_are_numerical_differences(seed: int) -> None:
    numbers, draw = net_numbers(seed), np.random.Generator(np.random.PCG64(seed + 1))
    features = draw.standard_normal(4)
    slopes = dict(zip("abc", draw.standard_normal(3).tolist(), strict=True))

    def value(other: AdapterState) -> float:
        factors = NET.factors(other, features)
        return math.fsum(slopes[name] * factors[name] for name in slopes)

    found = NET.pull(numbers, features, slopes)
    assert {n: t.shape for n, t in found.items()} == NET.shapes()
    for name, one in numbers.items():
        for flat in draw.choice(one.size, min(one.size, 12), replace=False):
            place, sides = np.unravel_index(flat, one.shape), []
            for step in (1e-6, -1e-6):
                moved = one.copy()
                moved[place] += step
                sides.append(value(numbers | {name: moved}))
            slope = (sides[0] - sides[1]) / 2e-6
            assert found[name][place] == pytest.approx(slope, rel=1e-5, abs=1e-7), name


def test_the_first_numbers_train_plainly_and_are_the_same_everywhere() -> None:
    first = NET.first(3)
    features = np.array([3.0, -2.0, 0.5, 9.0])
    assert set(NET.factors(first, features).values()) == {1.0}
    assert encode_adapter(first) == encode_adapter(NET.first(3))
    assert encode_adapter(first) != encode_adapter(NET.first(4))
    assert {name: one.shape for name, one in first.items()} == NET.shapes()


def test_factors_below_zero_count_as_zero_and_can_come_back() -> None:
    numbers, features = NET.first(0), np.ones(4)
    numbers[LINEARS[-1] + ".bias"][0], numbers[OWN][1] = -0.5, -0.5
    assert NET.factors(numbers, features) == {"a": 0.0, "b": 0.0, "c": 1.0}
    pulled = NET.pull(numbers, features, dict.fromkeys("abc", -1.0))
    assert pulled[LINEARS[-1] + ".bias"][0] < 0 and pulled[OWN][1] < 0  # a step goes upwards


@pytest.mark.parametrize("kind", KINDS)
def test_factors_of_one_are_plain_training_and_of_zero_none(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, adapter = opened(tiny_base, hub_task, kind)
    terms = FitTerms(steps=4, batch=4, lr=0.01)
    plain = fit(engine, Form(), adapter, TRAIN, terms, 7)
    fitted, same = rated_fit(engine, adapter, dict.fromkeys(adapter, 1.0), TRAIN, terms, 7)
    assert fitted.steps == 4 and fitted.loss == pytest.approx(plain.loss, rel=1e-5)
    for name, one in plain.numbers.items():
        assert np.allclose(same[name], one, rtol=1e-3, atol=1e-5), name
    still = next(iter(adapter))
    factors = {name: float(name != still) for name in adapter}
    _, other = rated_fit(engine, adapter, factors, TRAIN, terms, 7)
    assert np.array_equal(other[still], adapter[still])
    assert encode_adapter(engine.adapter()) == encode_adapter(other)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_each_tensor_moves_its_factor_times_as_far_as_by_plain_steps(seed: int, steps: int) -> None:
    draw = np.random.Generator(np.random.PCG64(seed))
    start = {name: draw.standard_normal((3, 2)).astype(np.float32) for name in "abc"}
    factors = {"a": 1.0, "b": 0.0, "c": 2.5}
    form, plain = Rated(start, factors), {name: one.copy() for name, one in start.items()}
    numbers = {name: np.zeros_like(one) for name, one in start.items()}
    optimizers = [AdamW(plain, 0.01, 0.0), AdamW(numbers, 0.01, 0.0)]
    for _ in range(steps):
        gradients = {name: draw.standard_normal((3, 2)).astype(np.float32) for name in start}
        optimizers[0].step({name: one.copy() for name, one in gradients.items()})
        optimizers[1].step(form.pull(numbers, gradients, 4))
    for name, one in form.adapter(numbers).items():
        expected = start[name] + factors[name] * (plain[name] - start[name])
        assert np.allclose(one, expected, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_after_one_step_slopes_are_those_of_the_whole_training(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, adapter = opened(tiny_base, hub_task, kind)
    terms = FitTerms(steps=1, batch=4, lr=0.05)
    draw = np.random.Generator(np.random.PCG64(0))
    adapter = {n: t + draw.normal(0, 0.1, t.shape).astype(np.float32) for n, t in adapter.items()}
    factors = {name: 0.5 + place / len(adapter) for place, name in enumerate(adapter)}

    def held_out_loss(of_factors: dict[str, float]) -> tuple[float, dict[str, float]]:
        fitted, _ = rated_fit(engine, adapter, of_factors, TRAIN, terms, 7)
        return slopes_of(engine, fitted.numbers, HELD_OUT, 1)

    _, slopes = held_out_loss(factors)
    largest = max(map(abs, slopes.values()))
    for name, slope in slopes.items():
        sides = [held_out_loss(factors | {name: factors[name] + h})[0] for h in (0.02, -0.02)]
        assert slope == pytest.approx((sides[0] - sides[1]) / 0.04, abs=1e-2 * largest), name


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_rates_that_are_too_low_are_learned_to_rise(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, adapter = opened(tiny_base, hub_task, kind)
    net = rates_of(adapter, engine.layers)
    features, terms = np.ones(2 * engine.layers), FitTerms(steps=3, batch=4, lr=1e-4)
    learning = FitTerms(steps=6, lr=0.02, scale_lr=0.1)
    start = net.first(0)
    before = encode_adapter(start)
    # The texts trained on are held out too: six texts of as many labels tell nothing of each other.
    found, losses = learned(engine, net, start, features, adapter, TRAIN, TRAIN, terms, 5, learning)
    again, others = learned(engine, net, start, features, adapter, TRAIN, TRAIN, terms, 5, learning)
    assert encode_adapter(start) == before
    assert encode_adapter(found) == encode_adapter(again)
    assert losses == others and len(losses) == 6
    assert losses[-1] < losses[0]
    factors = net.factors(found, features)
    assert np.mean(list(factors.values())) > 1.5


def test_the_net_travels_and_is_averaged_as_an_adapter_is() -> None:
    devices = [NET.first(seed) for seed in (1, 2)]
    sent = [decode_update(encode_update(Update("work-1", 3, one))).delta for one in devices]
    mean = weighted_mean(zip(sent, (1.0, 3.0), strict=True))
    for name, one in mean.items():
        assert np.allclose(one, 0.25 * devices[0][name] + 0.75 * devices[1][name], atol=1e-6)
    NET.check(mean)


def test_what_is_not_of_this_base_or_adapter_is_one_line() -> None:
    numbers = NET.first(0)
    NET.check(numbers)
    with pytest.raises(AdapterError, match="another base: they read 4 features"):
        RatesNet(NET.tensors, 6).check(numbers)
    with pytest.raises(AdapterError, match="another adapter: they are 3, and it has 2"):
        RatesNet(("a", "b"), 4).check(numbers)
    with pytest.raises(AdapterError, match="other tensors"):
        NET.check({})


def test_without_held_out_texts_there_is_one_line(tiny_base: Base, hub_task: Task) -> None:
    engine, adapter = opened(tiny_base, hub_task, "onnx")
    with pytest.raises(TrainingError, match="held out"):
        slopes_of(engine, adapter, [], 4)
