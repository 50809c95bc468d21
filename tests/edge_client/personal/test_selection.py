"""Which ranks are kept: the laws, and what is left of a bank."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.banks import bank_spec
from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import PREFIX, lora_modules, parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.personal.bank import (
    Bank,
    BudgetOfRanks,
    at_random,
    bank_numbers,
    chosen,
    cut,
    modules_of,
    uniform,
)
from smidgen.edge_client.updates.forms import LORA_A, LORA_B

BANK = 5
FACTORS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5]), min_size=BANK, max_size=BANK)
LAMBDAS = st.dictionaries(st.sampled_from("abcdef"), FACTORS.map(np.array), min_size=1)


@given(LAMBDAS, st.integers(1, BANK))
def test_exactly_the_largest_are_kept(lambdas: dict[str, np.ndarray], budget: int) -> None:
    kept = chosen(lambdas, budget)
    assert sum(map(len, kept.values())) == budget * len(lambdas)
    inside = [lambdas[m][i] for m in lambdas for i in kept[m]]
    outside = [lambdas[m][i] for m in lambdas for i in range(BANK) if i not in kept[m]]
    assert not outside or min(inside) >= max(outside)
    assert all(list(rows) == sorted(set(rows)) for rows in kept.values())


@given(LAMBDAS, st.integers(1, BANK), st.randoms())
def test_the_order_of_modules_does_not_matter(
    lambdas: dict[str, np.ndarray], budget: int, random: Random
) -> None:
    names = list(lambdas)
    random.shuffle(names)
    assert chosen({name: lambdas[name] for name in names}, budget) == chosen(lambdas, budget)


@given(LAMBDAS, st.integers(1, BANK - 1), st.integers(0, 99))
def test_a_larger_budget_keeps_what_a_smaller_one_does(
    lambdas: dict[str, np.ndarray], budget: int, seed: int
) -> None:
    for found in (chosen, uniform, lambda all_of, r: at_random(all_of, r, seed)):
        smaller, larger = found(lambdas, budget), found(lambdas, budget + 1)
        assert all(set(smaller[module]) <= set(larger[module]) for module in lambdas)


def test_of_equal_factors_the_first_module_and_the_lowest_rank_come_first() -> None:
    even = {"b": np.ones(3), "a": np.ones(3)}
    assert chosen(even, 1) == {"a": (0, 1), "b": ()}
    assert uniform(even, 1) == {"a": (0,), "b": (0,)}


@pytest.mark.parametrize("budget", [0, -1, 4])
def test_a_budget_that_the_bank_does_not_have_is_one_line(budget: int) -> None:
    with pytest.raises(BudgetOfRanks, match=rf"--rank-budget {budget}: 1 to 3"):
        chosen({"a": np.ones(3), "b": np.ones(3)}, budget)


@pytest.mark.parametrize("name", ["lora:4@q,k,v,o,up,down", "lora:4@q,v+head"])
def test_what_is_left_of_a_bank_changes_the_base_as_the_bank_did(
    tiny_base: Base, name: str
) -> None:
    shape = tiny_base.shape
    spec = bank_spec(parse_adapter(name), shape)
    adapter = initial_adapter(spec, tiny_base, 6, seed=0)
    draw = np.random.Generator(np.random.PCG64(0))
    for module in modules_of(adapter):
        adapter[module + LORA_B] = draw.standard_normal(
            adapter[module + LORA_B].shape, dtype=np.float32
        )
    lambdas = {module: draw.uniform(0.1, 2, 4) for module in modules_of(adapter)}
    first = modules_of(adapter)[0]
    lambdas[first] = np.full(4, 0.01)  # nothing of it is kept
    kept = chosen(lambdas, 2)
    left, numbers = cut(spec, shape, bank_numbers(adapter, lambdas), kept)
    assert not kept[first] and first + LORA_A not in numbers
    assert left.head == spec.head and parse_adapter(str(left)) == left
    of_left = lora_modules(left, shape)
    assert {PREFIX + one: row.rank for one, row in of_left.items()} == {
        module: len(rows) for module, rows in kept.items() if rows
    }
    assert {row.scaling for row in of_left.values()} == {2.0}
    wanted = initial_adapter(left, tiny_base, 6, seed=0)
    made = Bank().adapter(numbers)
    assert {n: t.shape for n, t in made.items()} == {n: t.shape for n, t in wanted.items()}
    for module in modules_of(adapter):
        rows = list(kept[module])
        factors = lambdas[module].astype(np.float32)[rows]
        whole = adapter[module + LORA_B][:, rows] * factors @ adapter[module + LORA_A][rows]
        if rows:
            assert np.allclose(made[module + LORA_B] @ made[module + LORA_A], whole, atol=1e-6)
