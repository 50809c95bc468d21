"""The optimizer that a run says, and what a correction adds to the gradients that it follows."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from edge_client.engine.torch_backend.adamw import AdamW
from edge_client.engine.torch_backend.sgd import Sgd
from edge_client.guest.steps import Moments
from edge_client.updates.step import Correction
from edge_client.wire.training import ADAMW, Training


class Optimizer(Protocol):
    """What moves tensors by their gradients."""

    def step(self) -> None:
        """Move every tensor that has a gradient."""

    def moments(self) -> Moments:
        """A copy of its state."""

    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """


def open_optimizer(tensors: dict[str, Tensor], training: Training) -> Optimizer:
    """The optimizer that a run says, at its beginning."""
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
