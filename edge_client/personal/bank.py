"""BayesTune-LoRA: a learned factor for every rank of every module, by which ranks are selected.

FedP2EFT (Lee et al. 2026, arXiv:2502.04387) writes LoRA as B diag(lambda) A, lambda > 0, and trains

    cross-entropy + (alpha_s / N) sum ||B_i||_1 / lambda_i
                  + (alpha_p / N) sum (log lambda_i + 100 lambda_i)

over all ranks i of all modules: lambda shrinks unless the loss needs it, and stays large where B's
column is long. A device keeps the largest lambdas, in whichever modules they are. Law: the ranks
selected for a smaller budget are among those for a larger one.

    kept = chosen(lambdas_of(numbers), budget=2)     # on average 2 ranks per module of the base
    spec, numbers = cut(bank, shape, numbers, kept)  # modules without a rank are left out
"""

import math
from collections.abc import Mapping

import numpy as np

from smidgen.edge_client.adapters.banks import LAMBDA, LARGEST, with_ranks
from smidgen.edge_client.adapters.spec import PREFIX, AdapterSpec, lora_modules
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.bases.layout import module_size
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.personal.fitting import Form
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed

SMALLEST = 1e-4
ALPHA_S, ALPHA_P, STEEPNESS = 100.0, 0.01, 100.0


class Bank(Form):
    """B diag(lambda) A, lambda between `SMALLEST` and `LARGEST`.

    What lies outside counts as the end that it is nearest to, and its gradient goes through as if
    it lay there (straight-through), so it can come back. Law: `adapter` of lambdas of 1 is LoRA's
    own A and B, bit by bit.

    Args:
        alpha_s: Weight of B's columns beside lambda.
        alpha_p: Weight of lambda itself.
        by_output: Whether a column of B counts by its mean over outputs, not by their sum; by the
            sum, ranks go to the modules with most outputs.
    """

    def __init__(
        self, alpha_s: float = ALPHA_S, alpha_p: float = ALPHA_P, by_output: bool = False
    ) -> None:
        self._alpha_s, self._alpha_p, self._by_output = alpha_s, alpha_p, by_output

    def adapter(self, numbers: AdapterState) -> AdapterState:
        found = {name: one for name, one in numbers.items() if not name.endswith(LAMBDA)}
        for module in modules_of(numbers):
            found[module + LORA_B] = numbers[module + LORA_B] * within(numbers[module + LAMBDA])
        return found

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        """See `Form`; B's own gradient is factor times that of B diag(lambda)."""
        found = dict(gradients)
        for module in modules_of(numbers):
            b, factors = numbers[module + LORA_B], within(numbers[module + LAMBDA])
            g = gradients[module + LORA_B]  # of B diag(lambda), (outputs, r)
            sparse, small = self._alpha_s / num_examples, self._alpha_p / num_examples
            sparse /= len(b) if self._by_output else 1
            found[module + LORA_B] = g * factors + np.sign(b) * np.float32(sparse) / factors
            long = np.abs(b).sum(axis=0, dtype=np.float64)  # (r,)
            wide = factors.astype(np.float64)
            own = -sparse * long / np.square(wide) + small * (1.0 / wide + STEEPNESS)
            pulled = (g.astype(np.float64) * b).sum(axis=0) + own
            found[module + LAMBDA] = pulled.astype(np.float32)
        return found


def within(factors: np.ndarray) -> np.ndarray:
    """Lambdas as they count."""
    found: np.ndarray = np.clip(factors, np.float32(SMALLEST), np.float32(LARGEST))
    return found


def modules_of(numbers: Mapping[str, np.ndarray]) -> list[str]:
    return sorted(name.removesuffix(LORA_A) for name in numbers if name.endswith(LORA_A))


def bank_like(bank: AdapterSpec, shape: Shape) -> AdapterState:
    """Names and shapes of a bank's LoRA, as an engine has them; zeros that take no room.

    Args:
        bank: LoRA.
        shape: The base's.
    """
    found: AdapterState = {}
    modules = lora_modules(bank, shape)
    for name in sorted(modules, key=lambda name: f"{name}.weight"):
        rows, columns = module_size(shape, modules[name].target)
        sizes = {LORA_A: (modules[name].rank, columns), LORA_B: (rows, modules[name].rank)}
        for part, size in sizes.items():
            found[PREFIX + name + part] = np.broadcast_to(np.float32(0.0), size)
    return found


def drawn_bank(like: AdapterState) -> AdapterState:
    """LoRA that banks start from: A uniform in +-1/sqrt(inputs), B zero, so it changes nothing.

    Equal shapes give equal bytes: rank i of a module is the same on all devices, and to every
    generator.

    Args:
        like: Tensors of the bank; only their names and shapes are read.
    """
    draw = np.random.Generator(np.random.PCG64(derive_seed(0, "bank")))
    found: AdapterState = {}
    for name in sorted(like):
        shape = like[name].shape
        if name.endswith(LORA_A):
            bound = 1.0 / math.sqrt(shape[1])
            found[name] = draw.uniform(-bound, bound, shape).astype(np.float32)
        else:
            found[name] = np.zeros(shape, np.float32)
    return {name: found[name] for name in like}


def bank_numbers(adapter: AdapterState, lambdas: Mapping[str, np.ndarray]) -> AdapterState:
    """A bank's numbers.

    Args:
        adapter: LoRA of the bank's spec.
        lambdas: By module, as `modules_of` names them, (r,).
    """
    factors = {module + LAMBDA: np.asarray(lambdas[module], np.float32) for module in lambdas}
    return adapter | factors


def lambdas_of(numbers: AdapterState) -> dict[str, np.ndarray]:
    return {module: within(numbers[module + LAMBDA]) for module in modules_of(numbers)}


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
    kept = [place[1:] for place in places[:count]]
    return {
        module: tuple(sorted(index for name, index in kept if name == module))
        for module in sorted(factors)
    }


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
    modules = lora_modules(bank, shape)
    ranks = {one[:2]: len(kept.get(PREFIX + name, ())) for name, one in modules.items()}
    left = {name: found[name] for name in numbers if name in found}
    return with_ranks(bank, shape, ranks), left
