"""The policies `memory` and `balance:TAG`: by what is known of the devices themselves.

`memory` prefers devices with room: their budget, or where they name none their machine's memory,
beside the fleet's median. `balance:language` evens out who is heard: a device of a group of which
there are few has better odds than one of a large group.
"""

from collections import Counter

from coordinator.rounds.selections.selection import Asking, Chosen
from coordinator.rounds.selections.weights import NOT_DRAWN, beside_median, drawn_by, within


class Memory:
    """In proportion to memory, within the bound."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it; of whom nothing is known has the smallest weight."""
        told = {name: float(asking.memory.get(name, 0)) for name in asking.candidates}
        weights = beside_median(told)
        return _drawn(asking, weights, "less memory than others")


class Balance:
    """Each group as often as the others, as far as the bound allows.

    Args:
        tag: The tag by whose values devices are grouped; those without it are a group too.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it."""
        groups = {name: asking.tags.get(name, {}).get(self._tag) for name in asking.candidates}
        sizes = Counter(groups.values())
        largest = max(sizes.values(), default=1)
        weights = {name: within(largest / sizes[group]) for name, group in groups.items()}
        return _drawn(asking, weights, "many others are of its group")


def _drawn(asking: Asking, weights: dict[str, float], small: str) -> Chosen:
    step = ("cohort", asking.round_index, asking.attempt)
    chosen = drawn_by(weights, asking.size, asking.secret, *step)
    others, largest = weights.keys() - set(chosen), max(weights.values(), default=1.0)
    told = {name: small if weights[name] < largest else NOT_DRAWN for name in sorted(others)}
    return chosen, told
