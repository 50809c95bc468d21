"""How a run's coordinator learns from a round, as its run file says it."""

from dataclasses import dataclass

from edge_client.errors import demand


@dataclass(frozen=True)
class Learning:
    """How a cohort's updates become the next adapter.

    Attributes:
        mean: What is made of a cohort's updates: `fedavg`, their mean by example counts.
        optimizer: What is made of that: `fedavg`, it is added to the adapter.
        selection: How those who are asked to train are chosen: `random`, each with the same chance.
    """

    mean: str = "fedavg"
    optimizer: str = "fedavg"
    selection: str = "random"

    def __post_init__(self) -> None:
        demand(self.mean in MEANS, f"mean: one of {', '.join(MEANS)}")
        demand(self.optimizer in OPTIMIZERS, f"optimizer: one of {', '.join(OPTIMIZERS)}")
        demand(self.selection in SELECTIONS, f"selection: one of {', '.join(SELECTIONS)}")


MEANS = ("fedavg",)
OPTIMIZERS = ("fedavg",)
SELECTIONS = ("random",)
