"""The policies of selection by their names, as a run file says them."""

from collections.abc import Callable, Mapping

from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.selections.drawn import Random
from coordinator.rounds.selections.selection import Selection

SELECTIONS: Mapping[str, Callable[[], Selection]] = {"random": Random}


def selection_of(learning: Learning) -> Selection:
    """How a run chooses who is asked to train."""
    return SELECTIONS[learning.selection]()
