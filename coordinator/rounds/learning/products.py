"""LoRA updates as sums of low-rank products: addition, truncation, norms.

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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge_client.wire.tensors import AdapterState

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
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
