"""Early exit: inspects texts between layers and stops those that need no further layer."""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np


class ExitMonitor(Protocol):
    """Sees the answers' states after chosen layers and says which texts are done."""

    @property
    def layers(self) -> Collection[int]:
        """The layers after which states are shown, from 1 to all but the last."""

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        """Which texts need no further layers, bool, (rows,).

        Args:
            layer: Layers that are behind these texts.
            rows: Which texts they are.
            states: The answer token's state after that layer's output norm, float32,
                (rows, hidden).
        """


class BatchWatch:
    """A watch over one batch; it translates the batch's rows to the caller's.

    Args:
        watch: The watch that is asked.
        names: Names of the batch's rows, in order.
    """

    def __init__(self, watch: ExitMonitor, names: Sequence[int]) -> None:
        self._watch, self._names = watch, names

    @property
    def layers(self) -> Collection[int]:
        return self._watch.layers

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        return self._watch.see(layer, [self._names[row] for row in rows], states)


def going_on(watch: ExitMonitor, layer: int, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Positions in `rows` of the texts that continue, ascending."""
    return np.flatnonzero(~watch.see(layer, rows.tolist(), states))
