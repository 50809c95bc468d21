"""The policies of selection by their names, as a run file says them: ours, then extensions."""

from collections.abc import Callable, Mapping

from coordinator.rounds.extensions.catalogue import made
from coordinator.rounds.extensions.checked import CheckedSelection
from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.selections.drawn import Random
from coordinator.rounds.selections.selection import Selection

# `learning.settings.SELECTIONS` has the same names.
SELECTIONS: Mapping[str, Callable[[], Selection]] = {"random": Random}


def selection_of(learning: Learning) -> Selection:
    """How a run chooses who is asked to train.

    Raises:
        PluginError: Neither ours nor known here.
    """
    name = learning.selection
    if name in SELECTIONS:
        return SELECTIONS[name]()
    return CheckedSelection(*made("selection", name))
