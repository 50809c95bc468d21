"""The optimizer that a run says, and what a tether adds to the gradients that it follows."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from edge_client.engine.tether import Tether
from edge_client.engine.torch_backend.adamw import AdamW
from edge_client.engine.torch_backend.sgd import Sgd
from edge_client.guest.steps import Moments
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
def add_tether(tensors: Mapping[str, Tensor], tether: Tether | None) -> None:
    """Add a tether's share to the gradients there are; tensors without one get none.

    Fails for want of memory, if at all, with tensors as they were.
    """
    if tether is None:
        return
    for name, tensor in tensors.items():
        if tensor.grad is None:
            continue
        if tether.proximal:
            received = torch.from_numpy(tether.received[name]).to(tensor.device)
            tensor.grad.add_(tensor - received, alpha=tether.proximal)
        if tether.shift:
            tensor.grad.add_(torch.from_numpy(tether.shift[name]).to(tensor.device))
