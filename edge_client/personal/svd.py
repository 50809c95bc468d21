"""AdaLoRA: LoRA as P diag(sigma) Q, whose least important ranks are masked during training.

Zhang et al. 2023 (arXiv:2303.10512). A regularizer keeps P and Q near orthogonal. A rank's
importance is the loss's sensitivity to it times that sensitivity's uncertainty, both smoothed over
steps, and the number of ranks falls by a cubic schedule. Names, order and formulas are PEFT's
(`RankAllocator`), except for ties: PEFT masks all ranks that tie with the first one to go, here the
budget is met exactly. P is a bank's B, Q its A, sigma its factors, with the bank's scaling.

    bank = bank_spec(parse_adapter(f"lora:{initial_rank(2)}"), shape)
    form = Svd(schedule_of(target=2, steps=terms.steps))
    fitted = fit(engine, form, svd_numbers(adapter, seed), examples, terms, seed)
    spec, adapter = form.plain(bank, shape, fitted.numbers)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.adapters.banks import LAMBDA
from smidgen.edge_client.adapters.spec import AdapterSpec
from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.errors import demand
from smidgen.edge_client.personal.bank import BudgetOfRanks, cut, largest, modules_of
from smidgen.edge_client.personal.fitting import Form
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.wire.tensors import AdapterState

BETA_1, BETA_2 = 0.85, 0.85  # PEFT's, of sensitivity and of uncertainty
SPREAD = 0.02  # standard deviation of P's and Q's first values, as in PEFT


@dataclass(frozen=True)
class PruningSchedule:
    """How many ranks are left after each step.

    Attributes:
        target: Ranks per module in the end, on average.
        warmup: First steps, in which none is masked.
        final: Last steps, in which those that are left do not change.
        interval: Steps from one masking to the next, between the two.

    Raises:
        WrongInput: A value outside its range; names it.
    """

    target: int
    warmup: int = 0
    final: int = 0
    interval: int = 1

    def __post_init__(self) -> None:
        demand(1 <= self.target <= 9999, "target: 1 to 9999")
        demand(0 <= self.warmup <= 1_000_000, "warmup: 0 to 1000000")
        demand(0 <= self.final <= 1_000_000, "final: 0 to 1000000")
        demand(1 <= self.interval <= 1_000_000, "interval: 1 to 1000000")

    def budget(self, step: int, steps: int, initial: int, modules: int) -> int:
        """Ranks of all modules together after a step.

        Laws: all of them up to the end of the warm-up, target times modules from the first of the
        final steps on, and never more than after the step before.

        Args:
            step: From 1.
            steps: Of the training.
            initial: Ranks that there are.
            modules: That carry them.
        """
        last, target = steps - self.final, self.target * modules
        if step <= self.warmup:
            return initial
        if step >= last:
            return target
        left = 1 - (step - self.warmup) / (last - self.warmup)
        return int((initial - target) * left**3 + target)

    def masks(self, step: int, steps: int) -> bool:
        last = steps - self.final
        return step == last or (self.warmup < step < last and step % self.interval == 0)


def schedule_of(
    target: int, steps: int, warmup: float = 0.1, final: float = 0.3, interval: int = 1
) -> PruningSchedule:
    """A schedule by shares of the steps, FedP2EFT's where nothing else is said.

    Args:
        target: Ranks per module in the end, on average.
        steps: Of the training; at least one of them masks.
        warmup: Share of the steps.
        final: Share of the steps.
        interval: Steps between maskings.

    Raises:
        WrongInput: The shares leave no step between them.
    """
    demand(warmup >= 0 and final >= 0 and warmup + final < 1, "warmup and final: together below 1")
    return PruningSchedule(target, int(warmup * steps), int(final * steps), interval)


def initial_rank(target: int) -> int:
    """Ranks per module to begin with: half as many again as in the end, as in FedP2EFT."""
    return target + (target + 1) // 2


class Svd(Form):
    """P diag(sigma) Q, with the memory of one training; make another one for the next.

    Beside what `fit` takes it holds 12 bytes for each number: a gradient and two averages.

    Args:
        schedule: How many ranks are left when.
        orthogonality: Weight of that term.
    """

    # The default is FedP2EFT's setting for MasakhaNEWS; PEFT's own is 0.5
    def __init__(self, schedule: PruningSchedule, orthogonality: float = 0.1) -> None:
        demand(orthogonality >= 0.0, "orthogonality: 0 or more")
        self._schedule, self._orthogonality = schedule, orthogonality
        self.importance = Importance()
        self._pulled: AdapterState = {}
        self.kept: dict[str, tuple[int, ...]] = {}  # by module; empty: nothing is masked yet

    def adapter(self, numbers: AdapterState) -> AdapterState:
        found = {name: one for name, one in numbers.items() if not name.endswith(LAMBDA)}
        for module in modules_of(numbers):
            found[module + LORA_B] = numbers[module + LORA_B] * numbers[module + LAMBDA]
        return found

    def pull(
        self, numbers: AdapterState, gradients: AdapterState, num_examples: int
    ) -> AdapterState:
        """See `Form`; a copy is kept for `settle`, which weighs ranks by it."""
        found, pushed = dict(gradients), orthogonality_pull(numbers)
        for module in modules_of(numbers):
            a, b, sigma = module + LORA_A, module + LORA_B, module + LAMBDA
            g, weight = gradients[b], np.float32(self._orthogonality)
            found[a] = gradients[a] + weight * pushed[a]
            found[b] = g * numbers[sigma] + weight * pushed[b]
            pulled = (g.astype(np.float64) * numbers[b]).sum(axis=0)
            found[sigma] = pulled.astype(np.float32)
            self._pulled |= {name: found[name].copy() for name in (a, b, sigma)}
        return found

    def settle(self, numbers: AdapterState, step: int, steps: int) -> None:
        """Weigh the ranks by the moved numbers, and set sigma to zero where one is masked.

        A rank that is masked before the final steps can come back: its sigma is trained on.

        Raises:
            WrongInput: The schedule leaves no step to mask in.
            BudgetOfRanks: Its target is above the ranks that there are.
        """
        schedule, modules = self._schedule, modules_of(numbers)
        last = steps - schedule.final
        demand(schedule.warmup < last, f"warmup and final: together below the {steps} steps")
        if step < last:
            self.importance.weigh(numbers, self._pulled)
        if schedule.masks(step, steps):
            initial = sum(len(numbers[module + LAMBDA]) for module in modules)
            if not schedule.target * len(modules) <= initial:
                mean = initial // len(modules)
                raise BudgetOfRanks(f"target {schedule.target}: 1 to {mean} ranks expected")
            budget = schedule.budget(step, steps, initial, len(modules))
            self.kept = largest(self.importance.of_ranks(numbers), budget)
            mask(numbers, self.kept)
        elif step > last:
            mask(numbers, self.kept)
        if step >= last:
            self.importance, self._pulled = Importance(), {}

    def plain(
        self, bank: AdapterSpec, shape: Shape, numbers: AdapterState
    ) -> tuple[AdapterSpec, AdapterState]:
        """What is left after training, as LoRA with ranks by module; sigma goes into B.

        Law: it changes the base as the masked numbers do.

        Args:
            bank: Of the numbers, with the bank's scaling.
            shape: The base's.
            numbers: As `fit` left them.
        """
        spec, left = cut(bank, shape, numbers, self.kept or every_rank(numbers))
        return spec, self.adapter(left)


class Importance:
    """How much each number matters, and each rank by its numbers.

    The paper's equations 9 to 11: of |number * gradient|, an average over steps, times an average
    of its distance from that average.
    """

    def __init__(self) -> None:
        self.averages: AdapterState = {}
        self.unsure: AdapterState = {}

    def weigh(self, numbers: AdapterState, pulled: AdapterState) -> None:
        """Take a step in.

        Args:
            numbers: After it.
            pulled: The gradients that it went by.
        """
        for name, gradient in pulled.items():
            now = np.abs(numbers[name] * gradient)
            average = self.averages.setdefault(name, np.zeros_like(now))
            average *= np.float32(BETA_1)
            average += np.float32(1 - BETA_1) * now
            unsure = self.unsure.setdefault(name, np.zeros_like(now))
            unsure *= np.float32(BETA_2)
            unsure += np.float32(1 - BETA_2) * np.abs(now - average)

    def of_ranks(self, numbers: AdapterState) -> dict[str, np.ndarray]:
        """Sigma's own, and the means of a row of Q and of a column of P; (its ranks,) by module.

        Zeros where nothing was weighed.
        """
        found = {}
        for module in modules_of(numbers):
            q, p = self._of(numbers, module + LORA_A), self._of(numbers, module + LORA_B)
            found[module] = self._of(numbers, module + LAMBDA) + (q.mean(axis=1) + p.mean(axis=0))
        return found

    def _of(self, numbers: AdapterState, name: str) -> np.ndarray:
        if name not in self.averages:
            return np.zeros(numbers[name].shape)
        return self.averages[name].astype(np.float64) * self.unsure[name]


def orthogonality(numbers: AdapterState) -> float:
    """Mean distance of P'P and QQ' from the identity, by Frobenius, over all of them; 0 or more."""
    found = [
        float(np.linalg.norm(gram)) for name in _bases(numbers) for gram in (_gram(numbers, name),)
    ]
    return sum(found) / len(found) if found else 0.0


def orthogonality_pull(numbers: AdapterState) -> AdapterState:
    """Its gradients at P and Q; zeros at one that is orthogonal."""
    names, found = _bases(numbers), {}
    for name in names:
        gram, whole = _gram(numbers, name), numbers[name].astype(np.float64)
        long = float(np.linalg.norm(gram)) * len(names)
        product = gram @ whole if name.endswith(LORA_A) else whole @ gram
        scale = 2.0 / long if long else 0.0
        found[name] = (scale * product).astype(np.float32)
    return found


def _bases(numbers: AdapterState) -> list[str]:
    return [module + part for module in modules_of(numbers) for part in (LORA_A, LORA_B)]


def _gram(numbers: AdapterState, name: str) -> np.ndarray:
    """Products of a matrix's ranks with each other, less the identity; (r, r) float64."""
    whole = numbers[name].astype(np.float64)
    gram = whole @ whole.T if name.endswith(LORA_A) else whole.T @ whole
    return gram - np.eye(len(gram))


def mask(numbers: AdapterState, kept: Mapping[str, tuple[int, ...]]) -> None:
    """Set sigma to zero, in place, where a rank is not kept."""
    for module in modules_of(numbers):
        sigma = numbers[module + LAMBDA]
        gone = np.ones(len(sigma), bool)
        gone[list(kept.get(module, ()))] = False
        sigma[gone] = 0.0


def every_rank(numbers: AdapterState) -> dict[str, tuple[int, ...]]:
    """Every rank: what is kept before anything is masked."""
    return {module: tuple(range(len(numbers[module + LAMBDA]))) for module in modules_of(numbers)}


def svd_numbers(adapter: AdapterState, seed: int) -> AdapterState:
    """First numbers: P and Q drawn, sigma zero, so the base is not changed yet.

    Law: equal shapes and an equal seed give equal bytes, in whatever order the tensors come.

    Args:
        adapter: LoRA of the bank's spec; what is not LoRA's stays.
        seed: Seed of the draw.
    """
    generator, found = np.random.Generator(np.random.PCG64(seed)), dict(adapter)
    for name in _bases(adapter):
        drawn = generator.standard_normal(adapter[name].shape, dtype=np.float32)
        found[name] = drawn * np.float32(SPREAD)
    for module in modules_of(adapter):
        found[module + LAMBDA] = np.zeros(len(adapter[module + LORA_A]), np.float32)
    return found
