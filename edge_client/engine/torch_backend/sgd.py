"""SGD in few tensors: the numbers of `torch.optim.SGD`, which is not loaded (it is large)."""

import torch
from torch import Tensor

from edge_client.guest.steps import Moments
from edge_client.wire.tensors import check_same_parameters


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
        """Move every tensor that has a gradient."""
        for name, tensor in self._tensors.items():
            if (gradient := tensor.grad) is None:
                continue
            if self._weight_decay:
                gradient.add_(tensor, alpha=self._weight_decay)
            if self._momentum:
                gradient = self._velocities[name].mul_(self._momentum).add_(gradient)
            tensor.add_(gradient, alpha=-self._lr)

    def moments(self) -> Moments:
        """A copy of its state: velocities as means, no squares and no counts."""
        kept = self._velocities.items()
        return Moments({name: v.detach().cpu().numpy().copy() for name, v in kept}, {}, {})

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
