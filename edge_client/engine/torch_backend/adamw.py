"""AdamW in few tensors."""

import numpy as np
import torch
from torch import Tensor

from edge_client.guest.steps import Moments
from edge_client.wire.tensors import AdapterState, check_same_parameters

BETAS, EPS = (0.9, 0.999), 1e-8  # torch.optim.AdamW's defaults


class AdamW:
    """torch's fused AdamW without `torch.optim`, which loads the compiler (70 MB).

    Loshchilov and Hutter 2019 (arXiv:1711.05101). Tensors without a gradient stay as they are.

    Args:
        tensors: Leaves to train; changed in place.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
    """

    def __init__(self, tensors: dict[str, Tensor], lr: float, weight_decay: float) -> None:
        self._names, self._tensors = list(tensors), list(tensors.values())
        self._lr, self._weight_decay = lr, weight_decay
        self._means = [torch.zeros_like(tensor) for tensor in self._tensors]
        self._squares = [torch.zeros_like(tensor) for tensor in self._tensors]
        self._steps = [torch.zeros((), device=tensor.device) for tensor in self._tensors]

    @torch.no_grad()
    def step(self) -> None:
        """Move every tensor that has a gradient."""
        chosen = [row for row, tensor in enumerate(self._tensors) if tensor.grad is not None]
        for row in chosen:
            self._steps[row] += 1
        pick = [
            [rows[row] for row in chosen]
            for rows in (self._tensors, self._means, self._squares, self._steps)
        ]
        values, means, squares, steps = pick
        torch._fused_adamw_(
            values,
            [tensor.grad for tensor in values if tensor.grad is not None],
            means,
            squares,
            [],
            steps,
            lr=self._lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self._weight_decay,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )

    def moments(self) -> Moments:
        """A copy of its state."""
        counts = [int(count.item()) for count in self._steps]
        return Moments(
            self._named(self._means),
            self._named(self._squares),
            dict(zip(self._names, counts, strict=True)),
        )

    def _named(self, tensors: list[Tensor]) -> AdapterState:
        copies = [tensor.detach().cpu().numpy().copy() for tensor in tensors]
        return dict(zip(self._names, copies, strict=True))

    @torch.no_grad()
    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """
        shapes = dict(zip(self._names, (tuple(t.shape) for t in self._tensors), strict=True))
        counts = {name: np.empty(()) for name in moments.counts}
        check_same_parameters(counts, dict.fromkeys(shapes, ()))
        for own, state in ((self._means, moments.means), (self._squares, moments.squares)):
            check_same_parameters(state, shapes)
            for name, tensor in zip(self._names, own, strict=True):
                tensor.copy_(torch.from_numpy(state[name]))
        for name, count in zip(self._names, self._steps, strict=True):
            count.fill_(moments.counts[name])
