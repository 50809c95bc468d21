"""LoRA's matrices as sums of products, never multiplied out: what they are added, cut and known by.

A module's change to its base is scaling * B A, with B (outputs, rank) and A (rank, inputs). A sum
of such products is one product of stacked factors: the B side by side, times the A one below the
other. Two thin QR decompositions and the SVD of a small core give its best form of any rank (Eckart
and Young 1936). All in float64, O((outputs + inputs) k) numbers for k stacked columns.

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
COLUMNS = 2  # times the smaller side of a matrix: a stack of more columns is compressed


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
    """A sum of products of one module.

    It holds at most `COLUMNS` times the smaller side's columns and one product more: beyond that
    it is compressed to its rank, without loss but for float64's rounding.

    Args:
        outputs: Rows of the sum.
        inputs: Its columns.
    """

    def __init__(self, outputs: int, inputs: int) -> None:
        self._most = COLUMNS * min(outputs, inputs)
        self._left, self._right = np.zeros((outputs, 0)), np.zeros((0, inputs))
        self._lefts: list[np.ndarray] = []
        self._rights: list[np.ndarray] = []
        self._columns = 0

    @property
    def columns(self) -> int:
        """How many it holds."""
        return self._columns

    def add(self, left: np.ndarray, right: np.ndarray, weights: np.ndarray | float) -> None:
        """Add left @ diag(weights) @ right.

        Args:
            left: (outputs, k).
            right: (k, inputs).
            weights: One for each of k, or for all.
        """
        self._lefts.append(left.astype(np.float64) * weights)
        self._rights.append(right.astype(np.float64))
        self._columns += left.shape[1]
        if self._columns > self._most:
            left, sizes, right = self._decomposed()
            self._lefts, self._rights = [left * sizes], [right]
            self._columns = len(sizes)

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

    def _decomposed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Its SVD, (outputs, k), (k,), (k, inputs); of each pair of vectors the signs are fixed."""
        left = np.concatenate([self._left, *self._lefts], axis=1)
        right = np.concatenate([self._right, *self._rights], axis=0)
        if not left.shape[1]:
            return left, np.zeros(0), right
        q_left, r_left = np.linalg.qr(left)
        q_right, r_right = np.linalg.qr(right.T)
        inner_left, sizes, inner_right = np.linalg.svd(r_left @ r_right.T, full_matrices=False)
        found = q_left @ inner_left, inner_right @ q_right.T
        largest = np.abs(found[1]).argmax(axis=1)
        signs = np.where(found[1][np.arange(len(sizes)), largest] < 0.0, -1.0, 1.0)
        return found[0] * signs, sizes, found[1] * signs[:, np.newaxis]


def product_norm(left: np.ndarray, right: np.ndarray) -> float:
    """Frobenius norm of left @ right, by its factors.

    Args:
        left: (outputs, k).
        right: (k, inputs).
    """
    left, right = left.astype(np.float64), right.astype(np.float64)
    return math.sqrt(max(0.0, float(np.sum((left.T @ left) * (right @ right.T)))))


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
