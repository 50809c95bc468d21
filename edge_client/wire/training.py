"""Training settings of a round, as its run file has them."""

from dataclasses import dataclass

from edge_client.errors import demand

ADAMW, SGD = "adamw", "sgd"


@dataclass(frozen=True)
class Training:
    """How a device trains in one round.

    Attributes:
        epochs: Passes over the texts that are trained on.
        batch: Texts in one optimizer step.
        lr: The optimizer's learning rate.
        weight_decay: AdamW's decoupled weight decay; of SGD added to the gradient, as torch does.
        tokens: Longest input in tokens, pattern included; longer texts are cut, patterns never.
        optimizer: `adamw` or `sgd`.
        momentum: Of SGD: v = momentum * v + gradient is what a step follows.
        proximal: mu of FedProx (Li et al. 2020, arXiv:1812.06127): each step's objective has
            mu/2 * ||w - received||^2 beside the loss; 0 for none.
        scaffold: Whether devices hold control variates (`edge_client.updates.scaffold`).
        adjusted: Whether the loss knows a device's own mix of labels (Menon et al. 2021,
            arXiv:2007.07314): how often it has each is added to the logits, as a logarithm, so that
            what it lacks is not unlearned.
        least_samples: Texts that a device trains on in a round, drawn anew and with replacement;
            0: all that it has, each once per epoch.
        sample_share: Share of its texts that are drawn where that is more: max(least_samples,
            sample_share x N), which throttles the largest devices (the healthcare paper's table 2).
    """

    epochs: int = 4
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    tokens: int = 128
    optimizer: str = ADAMW
    momentum: float = 0.0
    proximal: float = 0.0
    scaffold: bool = False
    adjusted: bool = False
    least_samples: int = 0
    sample_share: float = 0.0

    def __post_init__(self) -> None:
        demand(1 <= self.epochs <= 10_000, "epochs: 1 to 10000")
        demand(1 <= self.batch <= 4096, "batch: 1 to 4096")
        demand(0.0 < self.lr < 100.0, "lr: above 0 and below 100")
        demand(0.0 <= self.weight_decay < 1.0, "weight_decay: 0 to below 1")
        demand(8 <= self.tokens <= 8192, "tokens: 8 to 8192")
        demand(self.optimizer in (ADAMW, SGD), "optimizer: adamw or sgd")
        demand(0.0 <= self.momentum < 1.0, "momentum: 0 to below 1")
        is_fit = not self.momentum or self.optimizer == SGD
        demand(is_fit, "momentum: 0 (adamw has its own), or optimizer sgd")
        demand(0.0 <= self.proximal <= 1e4, "proximal: 0 to 10000")
        is_plain = self.optimizer == SGD and not self.momentum and not self.proximal
        demand(
            is_plain or not self.scaffold, "scaffold: optimizer sgd without momentum and proximal"
        )
        demand(0 <= self.least_samples <= 10**9, "least_samples: 0 to 10^9")
        demand(0.0 <= self.sample_share <= 1.0, "sample_share: 0 to 1")
        is_drawn = bool(self.least_samples) or not self.sample_share
        demand(is_drawn, "sample_share: least_samples of 1 or more beside it")

    def samples_of(self, texts: int) -> int:
        """Texts in one pass of a device that has so many; one that is repeated counts again."""
        if not self.least_samples:
            return texts
        return max(self.least_samples, round(self.sample_share * texts))

    @property
    def kept_numbers(self) -> int:
        """Numbers beside each trained one's value and gradient: moments, w received, c - c_i."""
        moments = 2 if self.optimizer == ADAMW else int(self.momentum > 0)
        return moments + int(self.proximal > 0) + int(self.scaffold)
