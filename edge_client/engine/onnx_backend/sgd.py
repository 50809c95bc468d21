"""SGD with numpy, for a process without torch: the same numbers as `torch.optim.SGD`."""

from collections.abc import Mapping

import numpy as np

from edge_client.guest.steps import Moments
from edge_client.wire.tensors import AdapterState, check_same_parameters


class Sgd:
    """w -= lr * v with v = momentum * v + g; without momentum v is g, and nothing is kept.

    Tensors without a gradient stay as they are. A step takes no memory of a tensor's size, so one
    that was begun is done whole.

    Args:
        tensors: What is trained, float32; changed in place.
        lr: Learning rate.
        weight_decay: Times the weights it is added to the gradient.
        momentum: 0 to below 1.
    """

    def __init__(
        self, tensors: AdapterState, lr: float, weight_decay: float, momentum: float
    ) -> None:
        self._tensors, self._lr = tensors, lr
        self._weight_decay, self._momentum = weight_decay, momentum
        kept = tensors if momentum else {}
        self._velocities = {name: np.zeros_like(tensor) for name, tensor in kept.items()}
        self._spare = spare_room(tensors if weight_decay else {})

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Move every tensor that has a gradient; the gradients are used up."""
        for name, gradient in gradients.items():
            tensor = self._tensors[name]
            if self._weight_decay:
                spare = self._spare[: tensor.size].reshape(tensor.shape)
                gradient += np.multiply(tensor, np.float32(self._weight_decay), out=spare)
            if self._momentum:
                velocity = self._velocities[name]
                velocity *= np.float32(self._momentum)
                velocity += gradient
                np.copyto(gradient, velocity)
            gradient *= np.float32(self._lr)
            tensor -= gradient

    def moments(self) -> Moments:
        """A copy of its state: velocities as means, no squares and no counts."""
        return Moments({name: kept.copy() for name, kept in self._velocities.items()}, {}, {})

    def load(self, moments: Moments) -> None:
        """Go on from there.

        Raises:
            WireError: Names or shapes are others.
        """
        shapes = {name: velocity.shape for name, velocity in self._velocities.items()}
        check_same_parameters(moments.means, shapes)
        check_same_parameters(moments.squares, {})
        for name, velocity in self._velocities.items():
            np.copyto(velocity, moments.means[name])


def spare_room(tensors: AdapterState) -> np.ndarray:
    """Room for the largest of some tensors."""
    return np.empty(max((tensor.size for tensor in tensors.values()), default=0), np.float32)
