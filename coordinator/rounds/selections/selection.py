"""`Selection`: a policy sees the devices that could train, and says which do and why others do not.

chosen, why_not = Random().choose(Asking(("a", "b", "c"), 2, secret, 1, 1))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from coordinator.rounds.scheduling.participation import Heard
from edge_client.wire.reports import Confidences

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
