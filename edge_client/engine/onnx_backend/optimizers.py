"""SGD and AdamW on numpy arrays, with `torch.optim`'s results and without torch."""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from smidgen.edge_client.engine import backend
from smidgen.edge_client.engine.onnx_backend.spill import Kept, spare_room
from smidgen.edge_client.guest.steps import Moments
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import ADAMW, Training


class Sgd:
    """w -= lr * v with v = momentum * v + g; without momentum v is g, and nothing is kept.

    Tensors without a gradient stay as they are. A step takes no memory of a tensor's size, so one
    that was begun is done whole, but where a file fails: then training is begun anew.

    Args:
        tensors: What is trained, float32; changed in place.
        lr: Learning rate.
        weight_decay: Times the weights it is added to the gradient.
        momentum: 0 to below 1.
        is_spilled: Whether velocities lie in a file.
    """

    def __init__(
        self,
        tensors: AdapterState,
        lr: float,
        weight_decay: float,
        momentum: float,
        is_spilled: bool = False,
    ) -> None:
        self._tensors, self._lr = tensors, lr
        self._weight_decay, self._momentum = weight_decay, momentum
        self._velocities = Kept(tensors if momentum else {}, is_spilled)
        self._spare = spare_room(tensors if weight_decay else {})

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Move every tensor that has a gradient; the gradients are used up."""
        for name, gradient in gradients.items():
            tensor = self._tensors[name]
            if self._weight_decay:
                spare = self._spare[: tensor.size].reshape(tensor.shape)
                gradient += np.multiply(tensor, np.float32(self._weight_decay), out=spare)
            if self._momentum:
                velocity = self._velocities.take(name)
                velocity *= np.float32(self._momentum)
                velocity += gradient
                self._velocities.put(name, velocity)
                np.copyto(gradient, velocity)
            gradient *= np.float32(self._lr)
            tensor -= gradient

    def moments(self) -> Moments:
        """See `Optimizer`: velocities as means, no squares and no counts."""
        return Moments(self._velocities, {}, {})

    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """
        check_same_parameters(moments.squares, {})
        self._velocities.load(moments.means)


class AdamW:
    """Loshchilov and Hutter 2019 (arXiv:1711.05101), Algorithm 2.

    Tensors without a gradient stay as they are, and so do their moments. A step takes no memory of
    a tensor's size, so one that was begun is done whole, but where a file fails: then training is
    begun anew.

    Args:
        tensors: What is trained, float32; changed in place.
        lr: Learning rate.
        weight_decay: Decoupled weight decay.
        is_spilled: Whether moments lie in a file.
    """

    def __init__(
        self, tensors: AdapterState, lr: float, weight_decay: float, is_spilled: bool = False
    ) -> None:
        self._tensors, self._lr, self._weight_decay = tensors, lr, weight_decay
        self._means, self._squares = Kept(tensors, is_spilled), Kept(tensors, is_spilled)
        self._steps = dict.fromkeys(tensors, 0)
        self._spare = spare_room(tensors)

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Move every tensor that has a gradient; the gradients are used up."""
        for name, gradient in gradients.items():
            self._move(self._tensors[name], gradient, name)

    def _move(self, tensor: np.ndarray, gradient: np.ndarray, name: str) -> None:
        mean, square = self._means.take(name), self._squares.take(name)
        self._steps[name] = step = self._steps[name] + 1
        if self._weight_decay:
            tensor *= np.float32(1 - self._lr * self._weight_decay)
        spare = self._spare[: tensor.size].reshape(tensor.shape)
        np.subtract(gradient, mean, out=spare)
        spare *= np.float32(1 - backend.BETA_1)
        mean += spare
        gradient *= gradient
        gradient *= np.float32(1 - backend.BETA_2)
        square *= np.float32(backend.BETA_2)
        square += gradient
        scale = np.sqrt(square, out=spare)
        scale /= np.float32(math.sqrt(1 - backend.BETA_2**step))
        scale += np.float32(backend.EPS)
        np.divide(mean, scale, out=gradient)
        gradient *= np.float32(self._lr / (1 - backend.BETA_1**step))
        self._means.put(name, mean)
        self._squares.put(name, square)
        tensor -= gradient

    def moments(self) -> Moments:
        return Moments(self._means, self._squares, dict(self._steps))

    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """
        counts = {name: np.empty(()) for name in moments.counts}
        check_same_parameters(counts, dict.fromkeys(self._tensors, ()))
        self._means.load(moments.means)
        self._squares.load(moments.squares)
        self._steps = dict(moments.counts)


class Optimizer(backend.Optimizer, Protocol):
    """What moves tensors by their gradients."""

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Move every tensor that has a gradient; the gradients are used up."""


def open_optimizer(
    tensors: AdapterState, training: Training, is_spilled: bool = False
) -> Optimizer:
    if training.optimizer == ADAMW:
        return AdamW(tensors, training.lr, training.weight_decay, is_spilled)
    return Sgd(tensors, training.lr, training.weight_decay, training.momentum, is_spilled)


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
