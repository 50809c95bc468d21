"""Cached outputs of the layers below the lowest trained one, for any engine.

The engine passes in how to compute its lower layers and gets the states at the cut, cached and
newly computed texts side by side. A cache hit does not change the result, since every state is
rounded to float16, the format of the cache. (A text recomputed in another batch may differ as
float32 does, and then by one rounding to float16 at most.) Values beyond float16's range are
neither rounded nor cached.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.metering.work import phase
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch

States = np.ndarray | list[np.ndarray]  # text by text
Compute = Callable[[Batch], States]


@dataclass(frozen=True)
class FrozenPrefix:
    """The lowest layers of a base, of which nothing is trained.

    Attributes:
        cache: Where their results are kept.
        layers: How many they are.
    """

    cache: ActivationCache
    layers: int

    def states(
        self,
        batch: Batch,
        dtype: str,
        compute: Compute,
        out: States,
        is_answer_only: bool = False,
    ) -> None:
        """Fill in the states at the cut.

        Args:
            batch: Encoded texts, B of them.
            dtype: What is computed in.
            compute: The states of some of the texts, float32, of each (tokens, H), padded or not;
                or (1, H) where only the answer is wanted.
            out: Of each text (tokens, H) or (1, H); zero where it is padded. Must not alias a
                buffer that `compute` writes.
            is_answer_only: Whether these are all layers, and one answer of a text is wanted.
        """
        whats = [f"{dtype} states"] * len(batch.ids)
        if is_answer_only:
            whats = [f"{dtype} answer {position}" for position in batch.mask_positions]
        self._fill(batch, self.layers, whats, compute, out)

    def means(
        self, batch: Batch, layer: int, dtype: str, compute: Compute, out: np.ndarray
    ) -> None:
        """Fill in mean token states after one of these layers.

        Args:
            batch: Encoded texts, B of them.
            layer: From 1 to `layers`.
            dtype: What is computed in.
            compute: The means of some of the texts, float32, (texts, 1, H).
            out: (B, 1, H).
        """
        self._fill(batch, layer, [f"{dtype} mean"] * len(batch.ids), compute, out)

    def _fill(
        self, batch: Batch, layers: int, whats: list[str], compute: Compute, out: States
    ) -> None:
        lengths, keys, missing = batch.attention.sum(axis=1), [], []
        with phase("cache"):
            for row, what in enumerate(whats):
                own = slice(lengths[row])
                segments = None if batch.segments is None else batch.segments[row, own]
                keys.append(self.cache.key(layers, batch.ids[row, own], what, segments))
                found = self.cache.get(keys[row])
                if found is None:
                    missing.append(row)
                else:
                    _place(out[row], found)
        if not missing:
            return
        computed = compute(batch.some(missing))
        with phase("cache"):
            for row, states in zip(missing, computed, strict=True):
                _place(out[row], self._keep(keys[row], states[: lengths[row]]))

    def _keep(self, key: str, states: np.ndarray) -> np.ndarray:
        """The states as they come back from the cache."""
        if not (np.abs(states) <= float(np.finfo(np.float16).max)).all():
            return states
        half = states.astype(np.float16)
        self.cache.put(key, half)
        return half


def is_kept(task: Task, cut: int) -> bool:
    """Whether a cache is opened for what the layers below a cut give.

    Where what is asked is drawn anew each time, a text hardly ever comes again as it was.

    Args:
        task: What is asked.
        cut: Layers of which nothing is trained.
    """
    return cut > 0 and not kind_of(task).is_drawn


def _place(target: np.ndarray, states: np.ndarray) -> None:
    target[: len(states)] = states
    target[len(states) :] = 0
