"""SGD and AdamW with `torch.optim`'s results, without importing it (it is large)."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from smidgen.edge_client.engine import backend
from smidgen.edge_client.guest.steps import Moments
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import ADAMW, Training


class Sgd:
    """w -= lr * v with v = momentum * v + g; without momentum v is g, and nothing is kept.

    Tensors without a gradient stay as they are. A step takes no memory of a tensor's size.

    Args:
        tensors: Leaves to train; changed in place, and so are their gradients.
        lr: Learning rate.
        weight_decay: Times the weights it is added to the gradient.
        momentum: 0 to below 1.
    """

    def __init__(
        self, tensors: dict[str, Tensor], lr: float, weight_decay: float, momentum: float
    ) -> None:
        self._tensors, self._lr, self._weight_decay = tensors, lr, weight_decay
        self._momentum = momentum
        kept = tensors if momentum else {}
        self._velocities = {name: torch.zeros_like(tensor) for name, tensor in kept.items()}

    @torch.no_grad()
    def step(self) -> None:
        for name, tensor in self._tensors.items():
            if (gradient := tensor.grad) is None:
                continue
            if self._weight_decay:
                gradient.add_(tensor, alpha=self._weight_decay)
            if self._momentum:
                gradient = self._velocities[name].mul_(self._momentum).add_(gradient)
            tensor.add_(gradient, alpha=-self._lr)

    def moments(self) -> Moments:
        """See `Optimizer`: velocities as means, no squares and no counts."""
        kept = self._velocities.items()
        return Moments({name: v.detach().cpu().numpy() for name, v in kept}, {}, {})

    @torch.no_grad()
    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """
        shapes = {name: tuple(velocity.shape) for name, velocity in self._velocities.items()}
        check_same_parameters(moments.means, shapes)
        check_same_parameters(moments.squares, {})
        for name, velocity in self._velocities.items():
            velocity.copy_(torch.from_numpy(moments.means[name]))


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
            beta1=backend.BETA_1,
            beta2=backend.BETA_2,
            weight_decay=self._weight_decay,
            eps=backend.EPS,
            amsgrad=False,
            maximize=False,
        )

    def moments(self) -> Moments:
        counts = [int(count.item()) for count in self._steps]
        return Moments(
            self._named(self._means),
            self._named(self._squares),
            dict(zip(self._names, counts, strict=True)),
        )

    def _named(self, tensors: list[Tensor]) -> AdapterState:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        return dict(zip(self._names, arrays, strict=True))

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


class Optimizer(backend.Optimizer, Protocol):
    """What moves tensors by their gradients."""

    def step(self) -> None:
        """Move every tensor that has a gradient."""


def open_optimizer(tensors: dict[str, Tensor], training: Training) -> Optimizer:
    if training.optimizer == ADAMW:
        return AdamW(tensors, training.lr, training.weight_decay)
    return Sgd(tensors, training.lr, training.weight_decay, training.momentum)


@torch.no_grad()
def add_correction(tensors: Mapping[str, Tensor], correction: Correction | None) -> None:
    """Add a correction to the gradients there are; tensors without one get none.

    Fails for want of memory, if at all, with tensors as they were.
    """
    if correction is None:
        return
    for name, tensor in tensors.items():
        if name in correction.frozen:
            tensor.grad = None
        if tensor.grad is None:
            continue
        if correction.proximal:
            received = torch.from_numpy(correction.received[name]).to(tensor.device)
            tensor.grad.add_(tensor - received, alpha=correction.proximal)
        if correction.shift:
            tensor.grad.add_(torch.from_numpy(correction.shift[name]).to(tensor.device))
