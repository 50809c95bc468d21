"""Which devices a step may ask, how they are drawn, and `Selection`, which policies implement.

Draws use the run's secret, not its seed, which devices know: otherwise a token's holder could draw
keys until its device is in the cohorts it wants.

    chosen, why_not = Random().choose(Asking(("a", "b", "c"), 2, secret, 1, 1))
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Literal, Protocol, TypeAlias

from smidgen.coordinator.rounds.scheduling.participation import Heard
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.fleet import DeviceFacts, check_tags
from smidgen.edge_client.wire.reports import Confidences
from smidgen.edge_client.wire.tensors import derive_seed, seeds_under


@dataclass(frozen=True)
class DeviceFilter:
    """What a device must be like to be asked into a run; by default every one is.

    Attributes:
        tags: Tags that an operator or a token must have given it, with these values.
        least_memory_bytes: Memory that it must have at least: its budget, or where it names none,
            all of its machine's.
        engine: What it must compute with; empty for either.
        is_on_mains: Whether it must be known to run from the mains.
        share: Share of the devices that fit otherwise, above 0 and at most 1; drawn by hashing
            the run's secret with the device's id, so a device stays in or out.
    """

    tags: dict[str, str] = field(default_factory=dict)
    least_memory_bytes: int = 0
    engine: Literal["", "onnx", "torch"] = ""
    is_on_mains: bool = False
    share: float = 1.0

    def __post_init__(self) -> None:
        check_tags(self.tags)
        demand(0 <= self.least_memory_bytes < 2**53, "least_memory: 0 to 8P")
        demand(0.0 < self.share <= 1.0, "share: above 0 and at most 1")


def is_chosen(
    choice: DeviceFilter, secret: str, device_id: str, tags: Mapping[str, str], facts: DeviceFacts
) -> bool:
    """Whether a run wants a device.

    Args:
        choice: The run's.
        secret: The run's, that no device knows.
        device_id: The device.
        tags: Those that the operator gave it, or the token that it came with; its own word is none.
        facts: What it said of itself.
    """
    # What a run does not ask for is not looked at: a step of a large fleet asks of every device.
    return (
        (not choice.tags or all(tags.get(key) == value for key, value in choice.tags.items()))
        and (not choice.least_memory_bytes or facts.usable_bytes >= choice.least_memory_bytes)
        and choice.engine in ("", facts.engine)
        and (not choice.is_on_mains or facts.is_on_mains is True)
        and (
            choice.share == 1.0 or derive_seed(secret, "devices", device_id) < choice.share * 2**63
        )
    )


def lack_of_tags(
    choice: DeviceFilter,
    fleet: Iterable[Mapping[str, str]],
    promised: Iterable[Mapping[str, str]] = (),
) -> str:
    """What is wrong with a choice whose tags no device of a fleet has; empty where some has them.

    A fleet without devices lacks nothing: they are yet to come.

    Args:
        choice: What a run asks for.
        fleet: The tags that each device was given.
        promised: The tags that devices yet to come are given, by each token that lets some in.
    """
    known = list(fleet)
    wanted = choice.tags.items()
    if not known or any(wanted <= tags.items() for tags in (*known, *promised)):
        return ""
    there = sorted({f"{key}={value}" for tags in known for key, value in tags.items()})
    said = " ".join(f"{key}={value}" for key, value in sorted(wanted))
    more = f" and {len(there) - 20} more" if len(there) > 20 else ""
    names = (
        f"the tags given are: {', '.join(there[:20])}{more}" if there else "none was given a tag"
    )
    return f"no device was given the tags {said}; {names}"


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


Chosen: TypeAlias = tuple[tuple[str, ...], Mapping[str, str]]


@dataclass(frozen=True)
class Asking:
    """What a policy knows when a training step opens; nothing of it may be changed.

    Attributes:
        candidates: Who may be asked; all different, in no order that means anything.
        size: Most that may be chosen, at least 1.
        secret: The run's, that no device knows: draws go by it.
        round_index: 1-based.
        attempt: 1-based; another attempt at a round may ask others.
        texts: How many texts with a gold label a device holds, of those that said so.
        confidences: How sure devices are of their other texts, of those that said so.
        thresholds: Least confidence of a pseudo-label, by label; none without labelling.
        heard: What asking devices to train last gave, of those that were asked in this run.
        memory: Bytes that a device may use, of those of which it is known.
        tags: Tags of devices, their owners' and the operator's.
    """

    candidates: Sequence[str]
    size: int
    secret: str
    round_index: int
    attempt: int
    texts: Mapping[str, int] = field(default_factory=dict)
    confidences: Mapping[str, Confidences] = field(default_factory=dict)
    thresholds: tuple[float, ...] = ()
    heard: Mapping[str, Heard] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What policies may know of devices beside the journal: their memory and tags, by device."""

    memory: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Selection(Protocol):
    """A policy: pure, so that a coordinator that was killed and a replay choose the same devices.

    Equal arguments give an equal choice, whatever the order of the candidates; at most `size` of
    them are chosen, each once.
    """

    def choose(self, asking: Asking) -> Chosen:
        """Who is asked, in sorted order, and why not, by device, of those that it has a word on.

        Args:
            asking: What is known.
        """
