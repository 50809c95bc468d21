"""Selection policies: `random`, `coverage`, `memory`, `balance:TAG`, `utility` (Oort), extensions.

Every policy but `random` gives each device a weight between 1 and `MOST_ODDS` and samples by
weight. So a device that lies gets at most `MOST_ODDS` to 1 odds; nobody is certain and nobody
excluded.

    drawn_by({"a": 8.0, "b": 1.0, "c": 1.0}, 2, secret, "cohort", 1, 1)

`random`: uniform, by the run's secret (`rounds.selection`).

`coverage`: devices with labels, above all labels that few others hold. Under AUG-FedPrompt's label
skew most devices have no gold label; what counts is what they report: labelled texts, else how many
texts they are sure of, by label.

`memory`: devices with more memory than the fleet's median, by their budget or else their machine.
`balance:TAG`: equal shares for groups, such as languages; small groups get better odds.

`utility`: Oort (Lai et al. 2021, arXiv:2010.06081): statistical utility times relative speed, with
a bonus for devices not heard of lately and a share of the cohort for those never asked. A device is
explored once: if it fails or is late, it has the least weight until its training counts. Oort's
|B| sqrt(mean of squared losses) is |B| times the mean loss here, all that a device reports. Claims
are clipped to a few times the median (`drawn_by`); durations are measured, not reported.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from statistics import median

from smidgen.coordinator.rounds.events import Passed
from smidgen.coordinator.rounds.extensions import CheckedSelection, made, split
from smidgen.coordinator.rounds.schedule import MOST_ODDS, Learning, Schedule
from smidgen.coordinator.rounds.scheduling.participation import Heard, awake
from smidgen.coordinator.rounds.selection import Asking, Chosen, Facts, Selection, drawn
from smidgen.coordinator.rounds.state import State
from smidgen.edge_client.wire.tensors import derive_seed

NOT_DRAWN = "not drawn"


def drawn_by(
    weights: Mapping[str, float], size: int, secret: str, *purpose: str | int
) -> tuple[str, ...]:
    """Draw without replacement, each next one with odds by weight.

    Efraimidis and Spirakis 2006 (Information Processing Letters 97), with a hash in the place of a
    generator. Equal weights give exactly what `selection.drawn` gives, and the order of devices
    does not matter.

    Args:
        weights: Devices and their weights, which are held to 1 to `MOST_ODDS`.
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
    """A weight held to 1 to `MOST_ODDS`; what is not a number counts least."""
    return min(max(weight, 1.0), MOST_ODDS) if weight == weight else 1.0


def beside_median(values: Mapping[str, float]) -> dict[str, float]:
    """Weights of figures: 2 for the median's, and in proportion within 1 to `MOST_ODDS`."""
    middle = median(values.values()) if values else 0.0
    if not 0.0 < middle < math.inf:
        return {name: 2.0 if value > 0.0 else 1.0 for name, value in values.items()}
    return {name: within(2.0 * (value / middle)) for name, value in values.items()}


class Random:
    """FedAvg's: a cohort drawn by hashing; the smallest numbers win, so no order matters."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it; nobody has a reason of its own not to be chosen."""
        return drawn(
            asking.candidates,
            asking.size,
            asking.secret,
            "cohort",
            asking.round_index,
            asking.attempt,
        ), {}


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
        chosen = drawn_by(
            weights, asking.size, asking.secret, "cohort", asking.round_index, asking.attempt
        )
        return chosen, _why_not(asking.texts, weights, chosen)


def _labels(asking: Asking, name: str) -> set[int]:
    """Labels of which a device is sure in some text; a device says that it is, not how often."""
    told = asking.confidences.get(name)
    rows = enumerate(told.counts) if told is not None else ()
    return {label for label, counts in rows if any(counts)}


def _weight(gold: int | None, rare: float, rarest: float) -> float:
    if gold:
        return MOST_ODDS
    known = UNKNOWN if gold is None else 1.0
    return max(known, 1.0 + (MOST_ODDS / 2 - 1.0) * rare / rarest if rarest else 1.0)


def _why_not(
    texts: Mapping[str, int], weights: Mapping[str, float], chosen: tuple[str, ...]
) -> dict[str, str]:
    others = weights.keys() - set(chosen)
    return {
        name: "holds no gold label" if texts.get(name) == 0 else NOT_DRAWN
        for name in sorted(others)
    }


class MemoryPolicy:
    """In proportion to memory, within the bound."""

    def choose(self, asking: Asking) -> Chosen:
        """As `Selection` has it; of whom nothing is known has the smallest weight."""
        told = {name: float(asking.memory.get(name, 0)) for name in asking.candidates}
        return _drawn(asking, beside_median(told), "less memory than others")


class Balance:
    """Each group as often as the others, as far as the bound allows.

    Args:
        tag: The tag by whose values devices are grouped; those without it are a group too.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def choose(self, asking: Asking) -> Chosen:
        groups = {name: asking.tags.get(name, {}).get(self._tag) for name in asking.candidates}
        sizes = Counter(groups.values())
        largest = max(sizes.values(), default=1)
        weights = {name: within(largest / sizes[group]) for name, group in groups.items()}
        return _drawn(asking, weights, "many others are of its group")


def _drawn(asking: Asking, weights: dict[str, float], small: str) -> Chosen:
    chosen = drawn_by(
        weights, asking.size, asking.secret, "cohort", asking.round_index, asking.attempt
    )
    others, largest = weights.keys() - set(chosen), max(weights.values(), default=1.0)
    told = {name: small if weights[name] < largest else NOT_DRAWN for name in sorted(others)}
    return chosen, told


EXPLORED, FALLS, LEAST = 0.9, 0.98, 0.2  # share of new devices: at first, per round, at least
SLOW = 2.0  # Oort's alpha: exponent of how much slower than the median a device is


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
    """Weights of devices that were asked, from 1 to `MOST_ODDS`, whatever they claim or fail at.

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
        # Oort's: sqrt(0.1 ln R / L) for a device last heard of in round L
        bonus = math.sqrt(0.1 * math.log(max(1, round_index)) / max(1, one.round_index))
        found[name] = min(MOST_ODDS, max(1.0, (usual[name] + bonus) * speed))
    return found


def _said(one: Heard) -> float:
    """Texts times loss; of a device that said no loss its texts alone."""
    loss = 1.0 if one.loss is None else max(0.0, one.loss)
    return min(float(one.examples) * loss, 1e300)


def _why(one: Heard, weight: float) -> str:
    if one.tries:
        return "its last try has not counted"
    return "little to learn from it, or slow" if weight < 2.0 else NOT_DRAWN


# `schedule.SELECTIONS` has the same names.
SELECTIONS: Mapping[str, Callable[..., Selection]] = {
    "random": Random,
    "coverage": Coverage,
    "utility": Utility,
    "memory": MemoryPolicy,
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


NAMED = 8  # devices of each reason
RESTS, TRAINS, NO_TEXTS = "rests after silence", "still trains", "no text to train on"
FOR_PRIVACY = "budget of privacy used up, or rests for it"
FULL, TRAINED = "enough updates are there already", "has trained from this adapter"


def choose(
    config: Schedule,
    state: State,
    names: Sequence[str],
    size: int,
    secret: str,
    at: tuple[int, int],
    least: Sequence[float],
    facts: Facts,
) -> Chosen:
    """Ask the run's policy.

    Args:
        config: The run.
        state: The run's state.
        names: Who may be asked.
        size: Most that are.
        secret: The run's.
        at: Round and attempt.
        least: Least confidence of a pseudo-label, by label.
        facts: What is known of devices.
    """
    if size < 1 or not names:
        return (), {}
    asking = Asking(
        tuple(sorted(names)),
        size,
        secret,
        *at,
        texts=state.texts,
        confidences=state.confidences,
        thresholds=tuple(least),
        heard=state.heard,
        memory=facts.memory,
        tags=facts.tags,
    )
    return selection_of(config.learning).choose(asking)


def passed_over(
    state: State,
    alive: Collection[str],
    names: Collection[str],
    chosen: Collection[str],
    why_not: Mapping[str, str],
    at_work: Collection[str] = (),
) -> tuple[Passed, ...]:
    """Why devices that are there are not asked: each once, by reason, the most frequent first.

    Args:
        state: The run's state.
        alive: Who is there.
        names: Who of them could be asked.
        chosen: Who is.
        why_not: What the policy says of some.
        at_work: Who still trains.
    """
    up, reasons = awake(alive, state.silences, state.steps + 1), dict[str, list[str]]()
    able = set(names)  # a list would be walked through for each of those that are there
    for name in set(alive) - set(chosen):
        if name in at_work:
            reason = TRAINS
        elif name in able:
            reason = why_not.get(name, NOT_DRAWN)
        else:
            reason = NO_TEXTS if name in up else RESTS
        reasons.setdefault(reason, []).append(name)
    ordered = sorted(reasons.items(), key=lambda one: (-len(one[1]), one[0]))
    return tuple(
        Passed(reason, len(some), tuple(nsmallest(NAMED, some))) for reason, some in ordered
    )
