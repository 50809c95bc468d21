"""The policies of selection by their names, as a run file says them: ours, then extensions."""

from collections.abc import Callable, Mapping

from coordinator.rounds.extensions.catalogue import made, split
from coordinator.rounds.extensions.checked import CheckedSelection
from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.selections.coverage import Coverage
from coordinator.rounds.selections.drawn import Random
from coordinator.rounds.selections.facts import Balance, Memory
from coordinator.rounds.selections.selection import Selection
from coordinator.rounds.selections.utility import Utility

# `learning.settings.SELECTIONS` has the same names.
SELECTIONS: Mapping[str, Callable[..., Selection]] = {
    "random": Random,
    "coverage": Coverage,
    "utility": Utility,
    "memory": Memory,
    "balance": Balance,
}


def selection_of(learning: Learning) -> Selection:
    """How a run chooses who is asked to train.

    Raises:
        PluginError: Neither ours nor known here.
    """
    name, arguments = split(learning.selection)
    if name in SELECTIONS:
        return SELECTIONS[name](*arguments)
    return CheckedSelection(*made("selection", learning.selection))
