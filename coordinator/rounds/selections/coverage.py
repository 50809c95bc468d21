"""The policy `coverage`: rather devices that hold labels, and labels that few others hold.

Under the label skew of AUG-FedPrompt most devices hold no gold label at all. What is known of them
is what they say anyway: how many labelled texts they hold, and for the others how many they are
sure of, by label.
"""

from collections import Counter
from collections.abc import Mapping

from coordinator.rounds.selections.selection import Asking, Chosen
from coordinator.rounds.selections.weights import MOST, NOT_DRAWN, drawn_by

UNKNOWN = 3.0  # of a device that has not said how many labels it holds: about between the others


class Coverage:
    """Those with gold labels have the best odds; of the others those whose labels are rare."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it."""
        held = {name: _labels(asking, name) for name in asking.candidates}
        holders = Counter(label for labels in held.values() for label in labels)
        rarest = sum(1.0 / number for number in holders.values())
        weights = {
            name: _weight(asking.texts.get(name), sum(1.0 / holders[one] for one in labels), rarest)
            for name, labels in held.items()
        }
        step = ("cohort", asking.round_index, asking.attempt)
        chosen = drawn_by(weights, asking.size, asking.secret, *step)
        return chosen, _why_not(asking.texts, weights, chosen)


def _labels(asking: Asking, name: str) -> set[int]:
    """Labels of which a device is sure in some text; a device says that it is, not how often."""
    told = asking.confidences.get(name)
    rows = enumerate(told.counts) if told is not None else ()
    return {label for label, counts in rows if any(counts)}


def _weight(gold: int | None, rare: float, rarest: float) -> float:
    if gold:
        return MOST
    known = UNKNOWN if gold is None else 1.0
    return max(known, 1.0 + (MOST / 2 - 1.0) * rare / rarest if rarest else 1.0)


def _why_not(
    texts: Mapping[str, int], weights: Mapping[str, float], chosen: tuple[str, ...]
) -> dict[str, str]:
    others = weights.keys() - set(chosen)
    return {
        name: "holds no gold label" if texts.get(name) == 0 else NOT_DRAWN
        for name in sorted(others)
    }
