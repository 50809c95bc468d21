"""An adapter of one's own above a shared one: what the two change of the base adds up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.adapters.banks import StackedAdapters, bank_spec, with_ranks
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, AdapterError, lora_modules, parse_adapter
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.personal.fitting import Above, Form
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter
from tests.edge_client.engine.engines import KINDS, TEXTS, batch_of, engine_of
from tests.edge_client.engine.plans import SMALL

SHAPE = replace(SMALL, hidden=8, intermediate=16)
LINEARS = ("q", "k", "v", "o", "up", "down")
RANKS = st.dictionaries(
    st.tuples(st.integers(0, 1), st.sampled_from(LINEARS)), st.integers(1, 3), min_size=1
)


def changes(spec_name: str, shape: Shape, numbers: AdapterState) -> dict[str, np.ndarray]:
    """What an adapter adds to each linear's weight."""
    return {
        name: numbers[PREFIX + name + LORA_B].astype(np.float64)
        @ numbers[PREFIX + name + LORA_A]
        * (one.alpha / one.rank)
        for name, one in lora_modules(parse_adapter(spec_name), shape).items()
    }


def drawn(spec_name: str, shape: Shape, seed: int) -> AdapterState:
    draw = np.random.default_rng(seed)
    found: AdapterState = {}
    sizes = {"up": (shape.hidden, shape.intermediate), "down": (shape.intermediate, shape.hidden)}
    for name, one in lora_modules(parse_adapter(spec_name), shape).items():
        inputs, outputs = sizes.get(one.target, (shape.hidden, shape.hidden))
        found[PREFIX + name + LORA_A] = draw.normal(size=(one.rank, inputs)).astype(np.float32)
        found[PREFIX + name + LORA_B] = draw.normal(size=(outputs, one.rank)).astype(np.float32)
    return found


@given(RANKS, st.sampled_from(["lora:2", "lora:3@q,up/0=5", "lora:8@k/top1"]), st.integers(0, 99))
def test_what_two_change_of_the_base_adds_up(
    ranks: dict[tuple[int, str], int], shared_name: str, seed: int
) -> None:
    own = with_ranks(parse_adapter("lora:1@q,k,v,o,up,down"), SHAPE, ranks)
    stack = StackedAdapters(own, parse_adapter(shared_name), SHAPE)
    upper, lower = drawn(str(own), SHAPE, seed), drawn(shared_name, SHAPE, seed + 1)
    joined = stack.joined(upper, lower)
    both = changes(str(stack.spec), SHAPE, joined)
    parts = changes(str(own), SHAPE, upper), changes(shared_name, SHAPE, lower)
    assert set(both) == {*parts[0], *parts[1]}
    for name, found in both.items():
        expected = sum(part[name] for part in parts if name in part)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert encode_adapter(stack.own(joined)) == encode_adapter(upper)


@given(st.sampled_from(["lora:2", "lora:3@q,up/0=5", "lora:8@k/top1"]), st.integers(0, 99))
@settings(max_examples=20)
def test_a_head_of_one_s_own_goes_with_what_the_shared_one_changes(name: str, seed: int) -> None:
    stack = StackedAdapters(parse_adapter("head"), parse_adapter(name), SHAPE)
    lower, head = drawn(name, SHAPE, seed), {"classifier.weight": np.ones((3, 8), np.float32)}
    joined = stack.joined(head, lower)
    assert stack.spec.head and encode_adapter(stack.own(joined)) == encode_adapter(head)
    expected = changes(name, SHAPE, lower)
    both = changes(str(replace(stack.spec, head=False)), SHAPE, joined)
    assert set(both) == set(expected)
    for module, found in both.items():
        np.testing.assert_allclose(found, expected[module], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["prompt:4", "lora:2+head", "bias", "lora:2+generator"])
def test_only_lora_lies_below_one_s_own(name: str) -> None:
    own = bank_spec(parse_adapter("lora:1"), SHAPE)
    with pytest.raises(AdapterError, match="LoRA alone is expected below one's own"):
        StackedAdapters(own, parse_adapter(name), SHAPE)


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_one_answers_as_the_shared_one_does(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    shared_name, shape = "lora:4@q,v", tiny_base.shape
    own = bank_spec(parse_adapter("lora:2@q,k,v,o,up,down"), shape)
    stack = StackedAdapters(own, parse_adapter(shared_name), shape)
    shared = moved(initial_adapter(parse_adapter(shared_name), tiny_base, 2, 1))
    below = engine_of(kind, tiny_base, hub_task, shared_name)
    below.put(shared)
    above = engine_of(kind, tiny_base, hub_task, str(stack.spec))
    above.put(stack.joined(initial_adapter(own, tiny_base, 2, 3), shared))
    np.testing.assert_allclose(above.predict(TEXTS), below.predict(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_above_has_the_gradient_that_it_would_have_below(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    own = bank_spec(parse_adapter("lora:3@q,up"), tiny_base.shape)
    stack = StackedAdapters(own, own, tiny_base.shape)
    numbers = moved(initial_adapter(own, tiny_base, 2, 5))
    engine = engine_of(kind, tiny_base, hub_task, str(stack.spec))
    form = Above(Form(), stack, [numbers])
    engine.put(form.adapter(numbers))
    _, joined = engine.gradients(batch_of(engine))
    pulled = form.pull(numbers, joined, len(TEXTS))
    assert list(pulled) == list(stack.own(joined))
    for name, gradient in pulled.items():
        below, above = np.split(joined[name], 2, axis=0 if "lora_A" in name else 1)
        assert np.array_equal(above, gradient)
        np.testing.assert_allclose(below, above, rtol=1e-4, atol=1e-6)


def test_what_lies_below_changes_in_turn_and_the_last_is_there_in_the_end() -> None:
    own = bank_spec(parse_adapter("lora:1@q"), SHAPE)
    name = str(own)
    turns = [drawn(name, SHAPE, seed) for seed in range(4)]
    form, numbers = Above(Form(), StackedAdapters(own, own, SHAPE), turns), drawn(name, SHAPE, 9)
    seen = []
    for step in range(1, 7):
        seen.append(turn_of(form, numbers, turns))
        form.settle(numbers, step, 6)
    assert seen == [0, 0, 1, 1, 2, 2] and turn_of(form, numbers, turns) == 3


def turn_of(form: Above, numbers: AdapterState, turns: list[AdapterState]) -> int:
    """Which of the shared ones lies below; their ranks come first."""
    joined = form.adapter(numbers)
    rows = [name for name in joined if name.endswith(LORA_A)]
    below = [all(np.array_equal(joined[row][:1], turn[row]) for row in rows) for turn in turns]
    return below.index(True)


def moved(state: AdapterState) -> AdapterState:
    draw = np.random.default_rng(3)
    return {
        name: (one + 0.05 * draw.normal(size=one.shape)).astype(np.float32)
        for name, one in state.items()
    }
