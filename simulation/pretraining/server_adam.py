"""The server's Adam over pseudo-gradients, whose state outlives the rounds (FedAdam)."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8

State = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Moments:
    """What Adam remembers.

    Attributes:
        step: Server steps done.
        means: Running mean of the pseudo-gradient, by name.
        squares: Running mean of its square, by name.
    """

    step: int
    means: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]

    @classmethod
    def zero(cls, weights: State) -> "Moments":
        """Before the first step."""
        return cls(
            0,
            {name: torch.zeros_like(weight) for name, weight in weights.items()},
            {name: torch.zeros_like(weight) for name, weight in weights.items()},
        )


def pseudo_gradient(mean_delta: State) -> dict[str, torch.Tensor]:
    """Minus the cohort's mean delta: where the clients went, the loss falls."""
    return {name: -delta for name, delta in mean_delta.items()}


def server_adam(
    weights: State, gradient: State, moments: Moments, server_lr: float
) -> tuple[dict[str, torch.Tensor], Moments]:
    """One step of Adam (Kingma and Ba 2015, arXiv:1412.6980, Algorithm 1) on the server.

    Reddi et al. 2021 (arXiv:2003.00295), Algorithm 2, but with Adam's bias correction, and eps
    where `torch.optim.Adam` has it; the numbers are the same as that optimizer's, with the
    pseudo-gradient as the gradient. The size of the pseudo-gradient does not matter: a positive
    multiple of all of a run's pseudo-gradients gives the same weights (but for eps), and no weight
    moves by much more than `server_lr`. Nothing is changed in place.

    Args:
        weights: By name.
        gradient: The pseudo-gradient; the same names and shapes.
        moments: Of the step before.
        server_lr: Of this step.
    """
    step = moments.step + 1
    means = {k: m.lerp(gradient[k], 1 - BETA_1) for k, m in moments.means.items()}
    squares = {
        k: BETA_2 * s + (1 - BETA_2) * gradient[k].square() for k, s in moments.squares.items()
    }
    scale = (1 - BETA_2**step) ** 0.5
    moved = {
        k: weight - server_lr / (1 - BETA_1**step) * means[k] / (squares[k].sqrt() / scale + EPS)
        for k, weight in weights.items()
    }
    return moved, Moments(step, means, squares)
