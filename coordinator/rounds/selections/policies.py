"""The policies of selection by their names, as a run file says them: ours, then extensions.

Draws in which some devices have better odds than others, within a bound that no claim moves.

Every policy but `random` gives each device a weight from 1 to `MOST`, made of what devices say and
do, and draws by it. So whoever lies wins odds of at most `MOST` to 1 against a device that says
nothing; nobody is in for certain, and nobody is out.

    drawn_by({"a": 8.0, "b": 1.0, "c": 1.0}, 2, secret, "cohort", 1, 1)

The policy `random`: everybody has the same chance, by the run's secret (`rounds.selection`).

The policy `coverage`: rather devices that hold labels, and labels that few others hold.

Under the label skew of AUG-FedPrompt most devices hold no gold label at all. What is known of them
is what they say anyway: how many labelled texts they hold, and for the others how many they are
sure of, by label.

The policies `memory` and `balance:TAG`: by what is known of the devices themselves.

`memory` prefers devices with room: their budget, or where they name none their machine's memory,
beside the fleet's median. `balance:language` evens out who is heard: a device of a group of which
there are few has better odds than one of a large group.

The policy `utility`: rather devices whose texts are still hard, and who answer soon.

Oort (Lai et al. 2021, arXiv:2010.06081): a device's statistical utility times how its speed
compares, with a bonus for those not heard of lately, and a share of the cohort for those never
asked. A device is explored once: if it fails, or comes late, it has the least weight until its
training counts. Oort's |B| sqrt(mean of squared losses) is |B| times the mean loss here, all that
a device reports. What it claims is held to a few times the median (`drawn_by`), so a
claim of 1e30 wins no more than one of a few medians; and how long it took is measured, not said.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median

from coordinator.rounds.extensions import CheckedSelection, made, split
from coordinator.rounds.learning.settings import Learning
from coordinator.rounds.scheduling.participation import Heard
from coordinator.rounds.selection import drawn
from coordinator.rounds.selections.selection import Asking, Chosen, Selection
from edge_client.wire.seeds import derive_seed

MOST = 8.0
NOT_DRAWN = "not drawn"


def drawn_by(
    weights: Mapping[str, float], size: int, secret: str, *purpose: str | int
) -> tuple[str, ...]:
    """Draw without replacement, each next one with odds by weight.

    Efraimidis and Spirakis 2006 (Information Processing Letters 97), with a hash in the place of a
    generator. Equal weights give exactly what `selection.drawn` gives, and the order of devices
    does not matter.

    Args:
        weights: Devices and their weights, which are held to 1 to `MOST`.
        size: How many are drawn.
        secret: The run's.
        purpose: What for.

    Returns:
        The drawn ids in sorted order.
    """

    def key(name: str) -> tuple[float, int, str]:
        number = derive_seed(secret, *purpose, name)
        return -math.log1p(-number / 2.0**63) / within(weights[name]), number, name

    return tuple(sorted(sorted(weights, key=key)[:size]))


def within(weight: float) -> float:
    """A weight held to 1 to `MOST`; what is not a number counts least."""
    return min(max(weight, 1.0), MOST) if weight == weight else 1.0


def beside_median(values: Mapping[str, float]) -> dict[str, float]:
    """Weights of figures: 2 for the median's, and in proportion within 1 to `MOST`."""
    middle = median(values.values()) if values else 0.0
    if not 0.0 < middle < math.inf:
        return {name: 2.0 if value > 0.0 else 1.0 for name, value in values.items()}
    return {name: within(2.0 * (value / middle)) for name, value in values.items()}


class Random:
    """FedAvg's: a cohort drawn by hashing; the smallest numbers win, so no order matters."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it; nobody has a reason of its own not to be chosen."""
        step = ("cohort", asking.round_index, asking.attempt)
        return drawn(asking.candidates, asking.size, asking.secret, *step), {}


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


EXPLORED, FALLS, LEAST = 0.9, 0.98, 0.2  # share of new devices: at first, per round, at least
SLOW = 2.0  # Oort's alpha: exponent of how much slower than the median a device is
BONUS = 0.1  # Oort's: sqrt(0.1 ln R / L) for a device last heard of in round L


class Utility:
    """Devices that were never asked by chance, a falling share; others by utility and speed."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it."""
        step = ("cohort", asking.round_index, asking.attempt)
        known = {name: asking.heard[name] for name in asking.candidates if name in asking.heard}
        new = dict.fromkeys((name for name in asking.candidates if name not in known), 1.0)
        share = max(LEAST, EXPLORED * FALLS ** (asking.round_index - 1))
        places = min(len(new), max(math.ceil(share * asking.size), asking.size - len(known)))
        explored = drawn_by(new, places, asking.secret, *step)
        weights = weights_of(known, asking.round_index)
        chosen = drawn_by(weights, asking.size - len(explored), asking.secret, *step)
        others = set(asking.candidates) - set(chosen) - set(explored)
        told = {name: "new, not drawn" for name in others if name in new}
        told |= {name: _why(known[name], weights[name]) for name in others if name in known}
        return tuple(sorted((*chosen, *explored))), told


def weights_of(known: Mapping[str, Heard], round_index: int) -> dict[str, float]:
    """Weights of devices that were asked, from 1 to `MOST`, whatever they claim or fail at.

    More loss, or more texts, never lowers a weight where the others stay; more time never raises
    it. Of whom the last try has not counted it is 1, and what it claimed before moves no other's.

    Args:
        known: What is known of them.
        round_index: The round that is about to open.
    """
    counted = {name: one for name, one in known.items() if not one.tries}
    usual = beside_median({name: _said(one) for name, one in counted.items()})
    took = [one.took_s for one in counted.values() if one.took_s]
    preferred_s = median(took) if took else 0.0
    found = dict.fromkeys(known, 1.0)
    for name, one in counted.items():
        is_slow = one.took_s is not None and 0.0 < preferred_s < one.took_s
        speed = (preferred_s / one.took_s) ** SLOW if is_slow and one.took_s else 1.0
        bonus = math.sqrt(BONUS * math.log(max(1, round_index)) / max(1, one.round_index))
        found[name] = min(MOST, max(1.0, (usual[name] + bonus) * speed))
    return found


def _said(one: Heard) -> float:
    """Texts times loss; of a device that said no loss its texts alone."""
    loss = 1.0 if one.loss is None else max(0.0, one.loss)
    return min(float(one.examples) * loss, 1e300)


def _why(one: Heard, weight: float) -> str:
    if one.tries:
        return "its last try has not counted"
    return "little to learn from it, or slow" if weight < 2.0 else NOT_DRAWN


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
