"""How a device trains in one round, as its run says it."""

from dataclasses import dataclass

from edge_client.errors import demand


@dataclass(frozen=True)
class Training:
    """How a device trains in one round.

    Attributes:
        epochs: Passes over the labelled texts.
        batch: Texts in one optimizer step.
        lr: AdamW's learning rate.
        weight_decay: AdamW's decoupled weight decay.
        tokens: Longest input in tokens, pattern included; longer texts are cut, patterns never.
    """

    epochs: int = 4
    batch: int = 8
    lr: float = 5e-3
    weight_decay: float = 0.0
    tokens: int = 128

    def __post_init__(self) -> None:
        demand(1 <= self.epochs <= 10_000, "epochs: 1 to 10000")
        demand(1 <= self.batch <= 4096, "batch: 1 to 4096")
        demand(0.0 < self.lr < 100.0, "lr: above 0 and below 100")
        demand(0.0 <= self.weight_decay < 1.0, "weight_decay: 0 to below 1")
        demand(8 <= self.tokens <= 8192, "tokens: 8 to 8192")
