"""Uniform selection of devices: to train a fraction, to label or evaluate a number, each once.

Draws use the run's secret, not its seed, which devices know: otherwise a token's holder could draw
keys until its device is in the cohorts it wants.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from edge_client.wire.reports import Confidences
from edge_client.wire.seeds import seeds_under


def cohort_size(fraction: float, population: int) -> int:
    """FedAvg's max(floor(C x K), 1) (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1)."""
    # 0.29 x 100 is 28.999999999999996 in binary; who wrote 0.29 means 29.
    return max(math.floor(fraction * population + 1e-9), 1)


def cohort(
    device_ids: Collection[str],
    fraction: float,
    secret: str,
    round_index: int,
    attempt: int,
    max_cohort: int = 0,
    over_selection: float = 1.0,
) -> tuple[str, ...]:
    """Draw a round's cohort, and those who are asked to spare.

    Every device gets a number by hashing, and the smallest win, so the draw does not hang on a
    generator's version. The order of `device_ids` does not matter, equal arguments give an equal
    result, and a smaller `max_cohort` gives a part of the same cohort.

    Args:
        device_ids: Who is there; all different.
        fraction: C, above 0 and at most 1.
        secret: The run's, that no device knows.
        round_index: 1-based.
        attempt: 1-based; another attempt at a round draws anew.
        max_cohort: Most devices that count; 0 for no cap.
        over_selection: How many times as many are asked, 1 or more.

    Returns:
        The chosen ids in sorted order; empty only if nobody is there.
    """
    size = counted_size(fraction, len(device_ids), max_cohort)
    asked = asked_size(size, over_selection)
    return drawn(device_ids, asked, secret, "cohort", round_index, attempt)


def asked_size(counted: int, over_selection: float) -> int:
    """Devices that are asked so that so many count."""
    return math.ceil(over_selection * counted - 1e-9)  # as `cohort_size` has it


def counted_size(fraction: float, population: int, max_cohort: int = 0) -> int:
    """Devices whose updates count in a round, so many being there that can train."""
    size = cohort_size(fraction, population)
    return min(size, max_cohort) if max_cohort else size


def candidates(
    device_ids: Collection[str],
    texts: Mapping[str, int],
    confidences: Mapping[str, Confidences],
    thresholds: Sequence[float],
) -> list[str]:
    """Who may be asked to train: everybody but those who said that they have no text for it.

    Args:
        device_ids: Who is there.
        texts: How many texts with a gold label they hold, of those that said so.
        confidences: How sure they are of the others, of those that said so.
        thresholds: Least confidence of a pseudo-label, by label.
    """

    def is_able(name: str) -> bool:
        told = confidences.get(name)
        return texts.get(name) != 0 or (told is not None and told.sure(thresholds) > 0)

    return [name for name in device_ids if is_able(name)]


def trainable(
    texts: Mapping[str, int], confidences: Mapping[str, Confidences], thresholds: Sequence[float]
) -> list[int]:
    """How many texts each device can train on, of those that said that they have any.

    Args:
        texts, confidences, thresholds: As `candidates` takes them.
    """
    found = []
    for name in texts.keys() | confidences.keys():
        told = confidences.get(name)
        found.append(texts.get(name, 0) + (told.sure(thresholds) if told else 0))
    return [number for number in found if number]


def evaluators(
    device_ids: Collection[str],
    without_tests: Collection[str],
    evaluate_cohort: int,
    secret: str,
    round_index: int,
    attempt: int,
) -> tuple[tuple[str, ...], int]:
    """Draw the devices that evaluate after a round, by the law of `cohort`.

    Those that are known to hold no test texts are drawn last, to fill the cohort up: their turn
    shows whether they hold some by now.

    Args:
        device_ids: Who is there; all different.
        without_tests: Who said that it holds no text to evaluate on.
        evaluate_cohort: How many are asked; 0 for all.
        secret: The run's, that no device knows.
        round_index: The round whose adapter is evaluated; 0 before any training.
        attempt: 1-based; another evaluation of the same adapter draws anew.

    Returns:
        The chosen ids in sorted order, empty only if nobody is there; and the population that they
        stand for: how many are there that may hold test texts, at least those chosen.
    """
    size = evaluate_cohort or len(device_ids)
    purpose = ("evaluate", round_index, attempt)
    able = [name for name in device_ids if name not in without_tests]
    others = [name for name in device_ids if name in without_tests]
    chosen = drawn(able, size, secret, *purpose)
    chosen += drawn(others, size - len(chosen), secret, *purpose)
    return tuple(sorted(chosen)), max(len(able), len(chosen))


def labellers(
    device_ids: Collection[str], infer_clients: int, secret: str, round_index: int
) -> tuple[str, ...]:
    """Draw the devices that label before a round, by the law of `cohort`.

    Args:
        device_ids: Who is there; all different.
        infer_clients: n, how many; 0 for all.
        secret: The run's, that no device knows.
        round_index: The training round that follows.

    Returns:
        The chosen ids in sorted order; empty only if nobody is there.
    """
    size = infer_clients or len(device_ids)
    return drawn(device_ids, size, secret, "label", round_index)


def drawn(
    device_ids: Collection[str], size: int, secret: str, *purpose: str | int
) -> tuple[str, ...]:
    """The devices whose hashes are smallest, sorted; all where fewer than `size` are there."""

    seed_of = seeds_under(secret, *purpose)

    def draw(device_id: str) -> tuple[int, str]:
        return seed_of(device_id), device_id

    return tuple(sorted(nsmallest(size, device_ids, key=draw)))
