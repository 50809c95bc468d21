"""Exact LoRA averaging across ranks: the mean of the products B A, not of the factors.

FedAvg of the factors is off by the covariance of A and B, and cannot add factors of different ranks
at all. Here the changes to the base's matrices are averaged, by stacked factors (FLoRA, Wang et al.
2024, arXiv:2409.05976) or, for many devices, by their sum, and truncated to the run's rank by SVD.
So ranks do not grow from round to round, and a device downloads only its own rank.

`at_rank` truncates an adapter to the rank that a device accepts: the first r components of each
module. Only how the device changed these counts; components it never had stay.

    at = at_rank(adapter, 4)
    found = product_mean(contributions, adapter)
    found.adapter, found.lost

`padded` (HetLoRA's baseline, Cho et al. 2024, arXiv:2401.06432: zeros for missing components) and
`apart` (missing ones left out) average A and B separately. They are wrong on purpose: baselines for
simulations, which no run can ask for.

A module's change to its base is scaling * B A, with B (outputs, rank) and A (rank, inputs). A sum
of such products is one product of stacked factors: the B side by side, times the A one below the
other. Two thin QR decompositions and the SVD of a small core give its best approximation of any
rank (Eckart and Young 1936). If the factors would hold more numbers than the sum, they are
multiplied out and the sum gets one SVD. All in float64.

    stack = Stack(768, 768)
    stack.add(b, a, 0.25 * 16 / 8)
    best = stack.best(8)          # best.left (768, 8) orthonormal, best.sizes (8,), best.right
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from smidgen.coordinator.rounds.learning.registry import Sum
from smidgen.edge_client.adapters.spec import LORA_ALPHA, at_most, parse_adapter
from smidgen.edge_client.updates.forms import LORA_A, LORA_B
from smidgen.edge_client.updates.step import Contribution
from smidgen.edge_client.wire.tensors import AdapterState

ROUNDED = 2.0**-46  # of the lengths of a product's columns: what cancels is known to that
WAITING = 64  # columns that are multiplied out at once: a sum is read and written as seldom


@dataclass(frozen=True)
class Best:
    """The best form of a rank: left * sizes @ right.

    Attributes:
        left: (outputs, rank), orthonormal columns.
        sizes: (rank,), singular values, the largest first; zeros where the sum has a lower rank.
        right: (rank, inputs), orthonormal rows, the largest number of each positive.
        lost: Squared Frobenius norm of what the form leaves out.
        whole: The sum's own.
    """

    left: np.ndarray
    sizes: np.ndarray
    right: np.ndarray
    lost: float
    whole: float


class Stack:
    """A sum of products of one module, in whichever form holds fewer numbers.

    Factors while their (outputs + inputs) k numbers are no more than the outputs * inputs of the
    sum, which for a square matrix is k up to half of its side; beyond that the sum, and factors
    that wait to be multiplied out: `WAITING` columns at most, and no more numbers than the sum.
    Which form it has changes nothing but rounding, in float64.

    Args:
        outputs: Rows of the sum.
        inputs: Its columns.
    """

    def __init__(self, outputs: int, inputs: int) -> None:
        self._outputs, self._most = outputs, outputs * inputs // (outputs + inputs)
        self._pairs = np.empty((0, outputs + inputs))  # each a column of left and a row of right
        self._columns = 0
        self._sum: np.ndarray | None = None

    @property
    def columns(self) -> int:
        return self._columns

    @property
    def numbers(self) -> int:
        return self._pairs.size + (0 if self._sum is None else self._sum.size)

    def add(self, left: np.ndarray, right: np.ndarray, weights: np.ndarray | float) -> None:
        """Add left @ diag(weights) @ right.

        Args:
            left: (outputs, k).
            right: (k, inputs).
            weights: One for each of k, or for all.
        """
        left, right = left.astype(np.float64) * weights, right.astype(np.float64)
        if self._columns + len(right) > self._room():
            self._multiply_out()
        if self._sum is not None and len(right) > self._room():
            self._sum += left @ right
        else:
            self._stack(left, right)

    def best(self, rank: int) -> Best:
        """Its best form of a rank; where its matrix has no such rank, zeros fill the rest."""
        left, sizes, right = self._decomposed()
        squares = np.square(sizes)
        missing = max(0, rank - len(sizes))
        return Best(
            np.pad(left[:, :rank], ((0, 0), (0, missing))),
            np.pad(sizes[:rank], (0, missing)),
            np.pad(right[:rank], ((0, missing), (0, 0))),
            math.fsum(squares[rank:]),
            math.fsum(squares),
        )

    def _room(self) -> int:
        """The most columns that it holds in factors."""
        return self._most if self._sum is None else min(self._most, WAITING)

    def _stack(self, left: np.ndarray, right: np.ndarray) -> None:
        """Room is made for twice as many, in one piece: small ones leave holes when they go."""
        end = self._columns + len(right)
        if end > len(self._pairs):
            pairs = np.empty((min(2 * end, self._room()), self._pairs.shape[1]))
            pairs[: self._columns] = self._pairs[: self._columns]
            self._pairs = pairs
        self._pairs[self._columns : end, : self._outputs] = left.T
        self._pairs[self._columns : end, self._outputs :] = right
        self._columns = end

    def _multiply_out(self) -> None:
        left, right = self._factors()
        if self._sum is None:
            self._sum = np.zeros((self._outputs, right.shape[1]))
        if self._columns:
            self._sum += left @ right
        self._columns = 0
        if len(self._pairs) > self._room():
            self._pairs = self._pairs[:0].copy()

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """The stacked ones, (outputs, k) and (k, inputs)."""
        pairs = self._pairs[: self._columns]
        return pairs[:, : self._outputs].T, pairs[:, self._outputs :]

    def _decomposed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Its SVD, (outputs, k), (k,), (k, inputs); of each pair of vectors the signs are fixed."""
        if self._sum is not None:
            self._multiply_out()
            left, sizes, right = np.linalg.svd(self._sum, full_matrices=False)
        elif self._columns:
            left, sizes, right = _svd_of_product(*self._factors())
        else:
            left, right = self._factors()
            return left, np.zeros(0), right
        largest = np.abs(right).argmax(axis=1)
        signs = np.where(right[np.arange(len(sizes)), largest] < 0.0, -1.0, 1.0)
        return left * signs, sizes, right * signs[:, np.newaxis]


def _svd_of_product(
    left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The SVD of left @ right, which is not made."""
    q_left, r_left = np.linalg.qr(left)
    q_right, r_right = np.linalg.qr(right.T)
    inner_left, sizes, inner_right = np.linalg.svd(r_left @ r_right.T, full_matrices=False)
    return q_left @ inner_left, sizes, inner_right @ q_right.T


def product_norm(left: np.ndarray, right: np.ndarray) -> float:
    """Frobenius norm of left @ right, by its factors; at least what may be lost to rounding.

    Law: where large columns cancel each other, it is never below the true norm by more than a part
    of it, so that no factors are taken for shorter than they are. Of zeros it is 0.

    Args:
        left: (outputs, k).
        right: (k, inputs).
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(left, axis=0) * np.linalg.norm(right, axis=1)
    _, of_left = np.linalg.qr(left)
    _, of_right = np.linalg.qr(right.T)
    return float(np.linalg.norm(of_left @ of_right.T) + ROUNDED * lengths.sum())


def lora_modules(state: AdapterState) -> Iterator[str]:
    """Names of the modules that carry LoRA in an adapter or update, sorted."""
    for name in sorted(state):
        module = name.removesuffix(LORA_A)
        if module != name and module + LORA_B in state:
            yield module


def others(state: AdapterState) -> AdapterState:
    """The tensors that are not LoRA's: heads, biases, prompts."""
    lora = {module + part for module in lora_modules(state) for part in (LORA_A, LORA_B)}
    return {name: tensor for name, tensor in state.items() if name not in lora}


ROW_NORM = 1 / math.sqrt(3)  # of A's rows: about what they are drawn with, so lr means the same


def at_rank(adapter: AdapterState, rank: int) -> AdapterState:
    """An adapter as a device of a lower rank gets it; modules of this rank or less stay.

    Of an adapter in canonical form it is the best form of that rank. The scaling is alpha / rank, a
    larger one for a lower rank, so B is that much smaller.

    Args:
        adapter: The run's.
        rank: The most that the device takes, 1 or more.
    """
    found = dict(adapter)
    for module in lora_modules(adapter):
        a, b = adapter[module + LORA_A], adapter[module + LORA_B]
        if rank < len(a):
            found[module + LORA_A] = np.ascontiguousarray(a[:rank])
            smaller = b[:, :rank].astype(np.float64) * (rank / len(a))
            found[module + LORA_B] = np.ascontiguousarray(smaller, np.float32)
    return found


def product_mean(
    updates: Iterable[Contribution], adapter: AdapterState
) -> tuple[AdapterState, float]:
    """The adapter after a round: its matrices plus the mean of what devices changed in theirs.

    W + sum_i w_i share_i (s_i B_i A_i - s_i B_i0 A_i0) / sum_i w_i for each module over the devices
    that train it, B_i0 A_i0 being what device i was handed. So devices that were all handed W end
    in the plain mean of their products; what a device of a lower rank was never handed is not
    pulled to zero by it. One device alone ends in its own product. Other tensors are averaged as
    ever, and a module that nobody trained stays.

    It is in the run's rank and in canonical form: components by size, the largest first, rows of A
    orthogonal and `ROW_NORM` long, the largest number of each positive.

    Args:
        updates: By device id, one or more; read once. Of their products as much is kept as `Stack`
            says, whatever the cohort: no more than a float64 copy of the adapted matrices, and a
            little that waits.
        adapter: What the step started from.

    Returns:
        The adapter, and the share of the mean's squared Frobenius norm that the rank leaves out,
        0 to 1.

    Raises:
        ValueError: No update, or a weight that is not positive.
    """
    plain, modules = Sum(), {module: _Module(adapter, module) for module in lora_modules(adapter)}
    for one in updates:
        plain.add(others(one.delta), one.weight, one.share)
        for module in lora_modules(one.delta):
            modules[module].add(one)
    mean = plain.mean()
    after = {
        name: (adapter[name].astype(np.float64) + mean[name]).astype(np.float32) for name in mean
    }
    lost = whole = 0.0
    for found in modules.values():
        changed, left_out, size = found.closed()
        after |= changed
        lost, whole = lost + left_out, whole + size
    return {name: after[name] for name in adapter}, lost / whole if whole else 0.0


def product_gain(adapter: AdapterState) -> float:
    """How many times as long as its factors' change (`bounds.norm_of`) a change well is.

    B's change counts alpha / r times the length of A's rows. A device of a lower rank r' trains
    fewer numbers with a larger scaling: its updates are up to sqrt(r / r') times as long.

    Args:
        adapter: The run's.
    """
    ranks = [len(adapter[module + LORA_A]) for module in lora_modules(adapter)]
    return max([1.0, *(LORA_ALPHA / rank * ROW_NORM for rank in ranks)])


class _Module:
    """One module's sum, in units of alpha and of the weights so far."""

    def __init__(self, adapter: AdapterState, module: str) -> None:
        self._module = module
        self._a, self._b = (adapter[module + part].astype(np.float64) for part in (LORA_A, LORA_B))
        self._rank = len(self._a)
        self._stack = Stack(len(self._b), self._a.shape[1])
        self._total, self._taken = 0.0, np.zeros(self._rank)

    def add(self, one: Contribution) -> None:
        """A device's factors, and that its part of the run's is in them."""
        a, b = one.delta[self._module + LORA_A], one.delta[self._module + LORA_B]
        rank = len(a)
        counted = one.weight * one.share
        before = rank / self._rank * self._b[:, :rank]
        before = before.astype(np.float32) if rank < self._rank else before
        self._stack.add(before + b.astype(np.float64), self._a[:rank] + a, counted / rank)
        self._total += one.weight
        self._taken[:rank] += counted

    def closed(self) -> tuple[AdapterState, float, float]:
        """The module's next tensors, and squared norms of what is left out and of the whole."""
        names = self._module + LORA_A, self._module + LORA_B
        if not self._total:
            kept = np.asarray(self._a, np.float32), np.asarray(self._b, np.float32)
            size = product_norm(self._b, self._a) ** 2 / self._rank**2
            return dict(zip(names, kept, strict=True)), 0.0, size
        self._stack.add(self._b, self._a, (self._total - self._taken) / self._rank)
        best, total = self._stack.best(self._rank), self._total
        with np.errstate(over="ignore"):  # an infinity is seen by whoever takes the adapter
            b = (best.left * (best.sizes / total * self._rank / ROW_NORM)).astype(np.float32)
            a = (best.right * ROW_NORM).astype(np.float32)
        return dict(zip(names, (a, b), strict=True)), best.lost / total**2, best.whole / total**2


def product_norm_of(delta: AdapterState, adapter: AdapterState) -> float:
    """How far an update moves what the base computes: the same for equal changes of any rank.

    The Frobenius norm of all changes to the base's matrices, alpha / r B A after minus before,
    and of the other tensors.

    Args:
        delta: The update.
        adapter: The run's, that it answers in its own rank.
    """
    squares = [
        float(np.square(tensor, dtype=np.float64).sum()) for tensor in others(delta).values()
    ]
    for module in lora_modules(delta):
        a, b = (delta[module + part].astype(np.float64) for part in (LORA_A, LORA_B))
        given = at_rank(
            {module + part: adapter[module + part] for part in (LORA_A, LORA_B)}, len(a)
        )
        left = np.concatenate([b, given[module + LORA_B]], axis=1)
        right = np.concatenate([given[module + LORA_A] + a, a], axis=0)
        squares.append((LORA_ALPHA / len(a) * product_norm(left, right)) ** 2)
    return math.sqrt(math.fsum(squares))


def factors_mean(
    updates: Iterable[Contribution], adapter: AdapterState, is_padded: bool
) -> AdapterState:
    """The adapter after a round, A and B averaged each for itself, in the run's scaling.

    Args:
        updates: By device id, one or more.
        adapter: What the step started from.
        is_padded: Whether what a device lacks counts as zero; else not at all.
    """
    plain, sums = Sum(), {name: np.zeros(tensor.shape) for name, tensor in adapter.items()}
    weights = {module: np.zeros(len(adapter[module + LORA_A])) for module in lora_modules(adapter)}
    for one in updates:
        plain.add(others(one.delta), one.weight, one.share)
        for module in lora_modules(one.delta):
            a, b = module + LORA_A, module + LORA_B
            rank, most = len(one.delta[a]), len(adapter[a])
            given = at_rank({name: adapter[name] for name in (a, b)}, rank)
            after = {name: given[name] + one.share * one.delta[name] for name in (a, b)}
            sums[a][:rank] += one.weight * after[a]
            sums[b][:, :rank] += one.weight * most / rank * after[b]
            weights[module][: most if is_padded else rank] += one.weight
    mean = plain.mean()
    found = {name: adapter[name].astype(np.float64) + mean[name] for name in mean}
    for module, weight in weights.items():
        a, b = module + LORA_A, module + LORA_B
        known = np.maximum(weight, 1e-300)
        found[a] = np.where(weight[:, np.newaxis] > 0, sums[a] / known[:, np.newaxis], adapter[a])
        found[b] = np.where(weight > 0, sums[b] / known, adapter[b])
    return {name: found[name].astype(np.float32) for name in adapter}


def spec_at_rank(adapter_spec: str, rank: int) -> str:
    """The name of a run's adapter as a device of at most this rank trains it.

    Args:
        adapter_spec: The run's, as it was named.
        rank: 1 or more.
    """
    spec = parse_adapter(adapter_spec)
    lower = at_most(spec, rank)
    return adapter_spec if lower is spec else str(lower)


def handed(adapter: AdapterState, adapter_spec: str) -> AdapterState:
    """A run's adapter as a device gets it that trains it under a name; the run's own as it is.

    Args:
        adapter: The run's.
        adapter_spec: The name (`spec_at_rank`).
    """
    ranks = [len(adapter[module + LORA_A]) for module in lora_modules(adapter)]
    rank = parse_adapter(adapter_spec).largest_rank if ranks else 0
    return at_rank(adapter, rank) if rank and rank < max(ranks) else adapter
