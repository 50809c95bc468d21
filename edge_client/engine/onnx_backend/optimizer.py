"""The optimizer that a run says, and what a correction adds to the gradients that it follows."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge_client.engine.onnx_backend.adamw import AdamW
from edge_client.engine.onnx_backend.sgd import Sgd, spare_room
from edge_client.guest.steps import Moments
from edge_client.updates.step import Correction
from edge_client.wire.tensors import AdapterState
from edge_client.wire.training import ADAMW, Training


class Optimizer(Protocol):
    """What moves tensors by their gradients."""

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Move every tensor that has a gradient; the gradients are used up."""

    def moments(self) -> Moments:
        """A copy of its state."""

    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """


def open_optimizer(tensors: AdapterState, training: Training) -> Optimizer:
    """The optimizer that a run says, at its beginning."""
    if training.optimizer == ADAMW:
        return AdamW(tensors, training.lr, training.weight_decay)
    return Sgd(tensors, training.lr, training.weight_decay, training.momentum)


def add_correction(
    gradients: AdapterState, tensors: AdapterState, correction: Correction | None
) -> None:
    """Add a correction to the gradients there are; tensors without one get none."""
    if correction is None:
        return
    for name in correction.frozen:
        gradients.pop(name, None)
    room = spare_room(tensors if correction.proximal else {})
    for name, gradient in gradients.items():
        if correction.shift:
            gradient += correction.shift[name]
        if not correction.proximal:
            continue
        spare = room[: gradient.size].reshape(gradient.shape)
        np.subtract(tensors[name], correction.received[name], out=spare)
        spare *= np.float32(correction.proximal)
        gradient += spare
