"""The policy `utility`: rather devices whose texts are still hard, and who answer soon.

Oort (Lai et al. 2021, arXiv:2010.06081): a device's statistical utility times how its speed
compares, with a bonus for those not heard of lately, and a share of the cohort for those never
asked. A device is explored once: if it fails, or comes late, it has the least weight until its
training counts. Oort's |B| sqrt(mean of squared losses) is |B| times the mean loss here, all that
a device reports. What it claims is held to a few times the median (`selections.weights`), so a
claim of 1e30 wins no more than one of a few medians; and how long it took is measured, not said.
"""

import math
from collections.abc import Mapping
from statistics import median

from coordinator.rounds.pace.heard import Heard
from coordinator.rounds.selections.selection import Asking, Chosen
from coordinator.rounds.selections.weights import MOST, NOT_DRAWN, beside_median, drawn_by

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
