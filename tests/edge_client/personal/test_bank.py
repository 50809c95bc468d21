"""Factors for every rank: the chain rule, the two terms, the ends of the range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.adapters.banks import LAMBDA, LARGEST, bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import lora_modules, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.personal.bank import SMALLEST, Bank, bank_numbers, lambdas_of, modules_of
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, encode_adapter


def numbers_of(seed: int, rank: int = 3, outside: bool = False) -> AdapterState:
    """Two modules of unequal shapes; far from where anything is not smooth."""
    draw = np.random.Generator(np.random.PCG64(seed))
    found: AdapterState = {}
    for module, rows, columns in (("one", 5, 4), ("two", 2, 6)):
        found[module + LORA_A] = draw.standard_normal((rank, columns)).astype(np.float32)
        b = draw.uniform(0.1, 1.0, (rows, rank)) * draw.choice([-1.0, 1.0], (rows, rank))
        found[module + LORA_B] = b.astype(np.float32)
        found[module + LAMBDA] = draw.uniform(0.2, 3.0, rank).astype(np.float32)
    if outside:
        found["one" + LAMBDA][:2] = -1.0, 2 * LARGEST
    return found


def loss_of(numbers: dict[str, np.ndarray], gains: AdapterState, n: int, by_output: bool) -> float:
    """Linear in the adapter, plus the paper's two terms word by word, in float64."""
    total = 0.0
    for module in ("one", "two"):
        a, b, factors = (numbers[module + part] for part in (LORA_A, LORA_B, LAMBDA))
        total += float((gains[module + LORA_A] * a).sum())
        total += float((gains[module + LORA_B] * (b * factors)).sum())
        for i, factor in enumerate(factors):
            long = np.abs(b[:, i]).mean() if by_output else np.abs(b[:, i]).sum()
            total += 100.0 / n * long / factor
            total += 0.01 / n * (np.log(factor) + 100.0 * factor)
    return total


@given(st.integers(0, 2**32 - 1), st.integers(1, 5000), st.booleans())
@settings(max_examples=20)
def test_gradients_are_those_of_the_whole_loss(seed: int, n: int, by_output: bool) -> None:
    numbers = numbers_of(seed)
    gains = {name: one for name, one in numbers_of(seed + 1).items() if LAMBDA not in name}
    found = Bank(by_output=by_output).pull(numbers, gains, n)
    assert found.keys() == numbers.keys()
    wide = {name: one.astype(np.float64) for name, one in numbers.items()}
    for name, one in wide.items():
        for place in np.ndindex(one.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = one.copy()
                moved[place] += step
                sides.append(loss_of(wide | {name: moved}, gains, n, by_output))
            slope = (sides[0] - sides[1]) / 2e-5
            assert found[name][place] == pytest.approx(slope, rel=1e-4, abs=1e-4), name


def test_factors_outside_the_range_count_as_its_ends_and_can_come_back() -> None:
    numbers = numbers_of(1, outside=True)
    assert lambdas_of(numbers)["one"][:2].tolist() == pytest.approx([SMALLEST, LARGEST])
    made = Bank().adapter(numbers)["one" + LORA_B]
    assert np.allclose(made[:, 0], numbers["one" + LORA_B][:, 0] * SMALLEST)
    assert np.allclose(made[:, 1], numbers["one" + LORA_B][:, 1] * LARGEST)
    gains = {name: np.zeros_like(one) for name, one in made_of(numbers).items()}
    pulled = Bank().pull(numbers, gains, 10)["one" + LAMBDA]
    assert pulled[0] < 0 < pulled[1]  # a step against the gradient leads back into the range


def made_of(numbers: AdapterState) -> AdapterState:
    return Bank().adapter(numbers)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_factors_of_one_are_plain_lora(seed: int) -> None:
    numbers = numbers_of(seed)
    plain = {name: one for name, one in numbers.items() if LAMBDA not in name}
    ones = {module: np.ones(3, np.float32) for module in modules_of(plain)}
    assert encode_adapter(made_of(bank_numbers(plain, ones))) == encode_adapter(plain)


def test_every_module_of_a_bank_has_its_scaling(tiny_base: Base) -> None:
    spec = bank_spec(parse_adapter("lora:8@q,k,v,o,up,down/top1"), tiny_base.shape)
    modules = lora_modules(spec, tiny_base.shape)
    assert len(modules) == 6 and {one.scaling for one in modules.values()} == {2.0}
    assert parse_adapter(str(spec)) == spec
    adapter = initial_adapter(spec, tiny_base, 6, seed=0)
    assert len(modules_of(adapter)) == 6
