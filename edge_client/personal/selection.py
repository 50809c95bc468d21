"""Which ranks a device keeps of a bank: the largest factors, wherever they are.

    kept = chosen(lambdas_of(numbers), budget=2)     # 2 ranks for each module there is, on average
    spec, numbers = cut(bank, shape, numbers, kept)  # modules without a rank are not made

One bank serves all budgets: what is kept for a smaller one is kept for a larger one too.
"""

from collections.abc import Mapping

import numpy as np

from edge_client.adapters.banks import with_ranks
from edge_client.adapters.spec import PREFIX, AdapterSpec, lora_modules
from edge_client.adapters.stacks import LORA_A, LORA_B
from edge_client.bases.architectures import Shape
from edge_client.errors import WrongInput
from edge_client.personal.bank import LAMBDA, modules_of
from edge_client.wire.tensors import AdapterState

Kept = Mapping[str, tuple[int, ...]]  # ranks of a bank, ascending, by module


class BudgetOfRanks(WrongInput):
    """More ranks than the bank has, or none."""


def chosen(lambdas: Mapping[str, np.ndarray], budget: int) -> dict[str, tuple[int, ...]]:
    """The largest factors of all modules together.

    Laws: exactly budget times as many as there are modules are kept; the order in which modules
    are named does not matter; of equal factors the one comes first whose module's name does, and
    in a module the lower rank; what a budget keeps, each larger budget keeps.

    Args:
        lambdas: By module, (bank,) each.
        budget: Ranks per module, on average.

    Raises:
        BudgetOfRanks: It is not from 1 to the bank's.
    """
    sizes = {len(factors) for factors in lambdas.values()}
    if len(sizes) != 1 or not 1 <= budget <= min(sizes):
        most = min(sizes, default=0)
        raise BudgetOfRanks(f"--rank-budget {budget}: 1 to {most}, the bank's ranks, expected")
    return largest(lambdas, budget * len(lambdas))


def largest(factors: Mapping[str, np.ndarray], count: int) -> dict[str, tuple[int, ...]]:
    """So many ranks, those of the largest factors; the laws of `chosen` hold.

    Args:
        factors: By module, (its ranks,) each.
        count: 0 to as many as there are.
    """
    places = sorted(
        (-float(factor), module, index)
        for module, of_module in factors.items()
        for index, factor in enumerate(of_module)
    )
    return _by_module(factors, [place[1:] for place in places[:count]])


def uniform(lambdas: Mapping[str, np.ndarray], budget: int) -> dict[str, tuple[int, ...]]:
    """The same number in each module, the lowest; to compare with."""
    level = {module: np.zeros(len(factors)) for module, factors in lambdas.items()}
    chosen(level, budget)  # refuses what it refuses
    return {module: tuple(range(budget)) for module in sorted(lambdas)}


def at_random(
    lambdas: Mapping[str, np.ndarray], budget: int, seed: int
) -> dict[str, tuple[int, ...]]:
    """As many, drawn; to compare with."""
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = {module: generator.random(len(lambdas[module])) for module in sorted(lambdas)}
    return chosen(drawn, budget)


def _by_module(
    lambdas: Mapping[str, np.ndarray], places: list[tuple[str, int]]
) -> dict[str, tuple[int, ...]]:
    return {
        module: tuple(sorted(index for name, index in places if name == module))
        for module in sorted(lambdas)
    }


def personal_spec(bank: AdapterSpec, shape: Shape, kept: Kept) -> AdapterSpec:
    """The adapter that is left.

    Args:
        bank: Of the bank.
        shape: The base's.
        kept: By module.
    """
    modules = lora_modules(bank, shape)
    ranks = {one[:2]: len(kept.get(PREFIX + name, ())) for name, one in modules.items()}
    return with_ranks(bank, shape, ranks)


def cut(
    bank: AdapterSpec, shape: Shape, numbers: AdapterState, kept: Kept
) -> tuple[AdapterSpec, AdapterState]:
    """What is left of a bank: its adapter, and the numbers of the ranks that are kept.

    Law: the bank with the factors of all other ranks at zero is the same change of the base.

    Args:
        bank: Of the bank.
        shape: The base's.
        numbers: With or without factors.
        kept: By module.
    """
    found = dict(numbers)
    for module in modules_of(numbers):
        rows = list(kept.get(module, ()))
        parts = {LORA_A: (rows,), LORA_B: (slice(None), rows), LAMBDA: (rows,)}
        for part, index in parts.items():
            if module + part in found:
                whole = found.pop(module + part)
                if rows:
                    found[module + part] = np.ascontiguousarray(whole[index])
    return personal_spec(bank, shape, kept), {
        name: found[name] for name in numbers if name in found
    }
