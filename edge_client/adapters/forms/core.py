"""An r x r core between two fixed factors: B' = B R, of which R alone is trained and sent.

Fed-SB (Singhal et al. 2025, arXiv:2502.15436) trains R between factors that LoRA-SB finds by a
singular value decomposition of the full weights' first gradient. A device here never has that
gradient, so the factors are drawn by their names: A with orthogonal rows as long as LoRA's own, B
with orthogonal columns of length outputs / rank, at which an AdamW step on R's r^2 numbers lowers
the loss as much, to first order, as one on the outputs x r numbers of LoRA's B would. R starts at
zero: the adapted model is the base itself.
"""

import numpy as np

from edge_client.adapters.forms.linear import LORA_A, LORA_B, Shapes, fixed_factor
from edge_client.wire.tensors import AdapterState

CORE = ".lora_core.weight"


class Core:
    """See the module and `linear.Form`."""

    def __init__(self, shapes: Shapes) -> None:
        named = [name for name in shapes if name.endswith(LORA_A)]
        self._modules = [name.removesuffix(LORA_A) for name in named]
        self._a, self._b = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for module in self._modules:
            rows, rank = shapes[module + LORA_B]
            a = _orthogonal(module + LORA_A, shapes[module + LORA_A]) / np.sqrt(3.0)
            b = _orthogonal(module + LORA_B, (rank, rows)).T * (rows / rank)
            self._a[module], self._b[module] = a.astype(np.float32), b.astype(np.float32)

    def first(self, lora: AdapterState) -> AdapterState:
        ranks = {module: len(lora[module + LORA_A]) for module in self._modules}
        cores = {f"{module}{CORE}": np.zeros((r, r), np.float32) for module, r in ranks.items()}
        return cores | _others(lora)

    def expand(self, trained: AdapterState) -> AdapterState:
        found = _others(trained)
        for module in self._modules:
            found[module + LORA_A] = self._a[module]
            found[module + LORA_B] = self._b[module] @ trained[module + CORE]
        return found

    def pull(self, gradients: AdapterState) -> AdapterState:
        """dL/dR = B^T dL/d(B R)."""
        found = _others(gradients)
        for module in self._modules:
            found[module + CORE] = self._b[module].T @ gradients[module + LORA_B]
        return found


def _orthogonal(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of length 1, orthogonal to each other, float64."""
    q, _ = np.linalg.qr(fixed_factor(tensor, shape).astype(np.float64).T)
    rows: np.ndarray = q.T
    return rows


def _others(state: AdapterState) -> AdapterState:
    return {name: one for name, one in state.items() if ".lora_" not in name}
