"""The policy `random`: everybody has the same chance, by the run's secret (`rounds.selection`)."""

from coordinator.rounds.selection import drawn
from coordinator.rounds.selections.selection import Asking, Chosen


class Random:
    """FedAvg's: a cohort drawn by hashing; the smallest numbers win, so no order matters."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it; nobody has a reason of its own not to be chosen."""
        step = ("cohort", asking.round_index, asking.attempt)
        return drawn(asking.candidates, asking.size, asking.secret, *step), {}
