"""How far a server's step goes: its learning rate by round, and what a server optimizer goes by."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Decay: TypeAlias = float | Literal["none", "linear"]


@dataclass(frozen=True)
class Rates:
    """The numbers of a server optimizer, by the names of Reddi et al. 2021 (arXiv:2003.00295).

    Attributes:
        lr: eta, of the first step.
        beta_1: Share of the running mean of pseudo-gradients that a step keeps; FedAvgM's momentum.
        beta_2: The same of their squares.
        tau: Added to the root of the squares; the smaller, the more all numbers move alike.
        is_corrected: Whether running means are corrected for starting from zero, as Adam does.
        decay: How `lr` falls: see `factor`.
    """

    lr: float = 1.0
    beta_1: float = 0.0
    beta_2: float = 0.0
    tau: float = 0.0
    is_corrected: bool = False
    decay: Decay = "none"


def factor(decay: Decay, round_index: int, rounds: int) -> float:
    """Share of the learning rate in a round; from 1 down, never below 0.

    Args:
        decay: `none`; `linear`, by equal parts from 1 in round 1 to 1 / rounds in the last; or d
            for 1 - d r in round r.
        round_index: r, 1-based.
        rounds: Of the run.
    """
    if decay == "none":
        return 1.0
    if decay == "linear":
        return max(0.0, 1.0 - (round_index - 1) / max(1, rounds))
    return max(0.0, 1.0 - decay * round_index)
