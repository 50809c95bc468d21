"""Clipping of one update: bounds on its norm, its weight, and its pull, the product of both.

Norm clipping: Sun et al. 2019 (arXiv:1911.07963), section 4. An update above the norm bound is
scaled down to it, not refused; one that is long and heavy at once loses weight. The coordinator
sets the bounds (`smidgen.coordinator.rounds.bounds`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from smidgen.edge_client.updates.step import Contribution, ServerContext, UpdateStep

LARGEST = 1e18  # what is larger in an adapter leaves float32's range when it is squared


@dataclass(frozen=True)
class UpdateBounds:
    """Of one step's updates; by default none.

    Attributes:
        norm: Longest update that counts unshortened; None: any.
        most_examples: Largest weight; 0: any.
        pull: Largest product of weight and length; None: any.
    """

    norm: float | None = None
    most_examples: int = 0
    pull: float | None = None

    def weight(self, num_examples: float, norm: float) -> float:
        """Weight in the mean of an update of this norm."""
        weight = float(min(num_examples, self.most_examples or num_examples))
        length = norm * self.share(norm)
        if self.pull is not None and weight * length > self.pull:
            return self.pull / length
        return weight

    def share(self, norm: float) -> float:
        """What an update of this norm is multiplied by: 1, or less where it is longer."""
        return 1.0 if self.norm is None or norm <= self.norm else self.norm / norm


class Clip(UpdateStep):
    """Keeps each contribution within the bounds; what is inside them stays bitwise as it came.

    Args:
        bounds: Of the round.
    """

    name = "clip"

    def __init__(self, bounds: UpdateBounds) -> None:
        super().__init__()
        self._bounds = bounds

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """Each with a weight and a share inside the bounds."""
        for one in cohort:
            weight = self._bounds.weight(one.weight, one.norm)
            yield replace(one, weight=weight, share=self._bounds.share(one.norm) * one.share)
