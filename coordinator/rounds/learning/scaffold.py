"""SCAFFOLD on the server: the population's control variate, from the deltas that come anyway.

Karimireddy et al. 2020 (arXiv:1910.06378), option II; `edge_client.wire.control` has the device's
half. Beside the adapter goes c, which devices fetch as they fetch adapters; nothing more comes up.

Law: c is the sum of all devices' c_i over their number, in which whoever has none counts with 0.

An update that was scaled down to its bound moves the adapter, but not c: what its device makes of
its own c_i would not be what was counted here. So the journal knows whose round counted last
(`State.kept`), each device is told, and goes on from its c_i of that round.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from coordinator.rounds.bounds import Bounds, bounds_of
from coordinator.rounds.events import StepOpened
from coordinator.rounds.learning.memory import Memory
from edge_client.wire.control import change_of
from edge_client.wire.tensors import AdapterState, Update
from edge_client.wire.training import Training

CONTROL = "control"  # the part of the memory that is c
SUM, NOW = "sum.", "now."  # of all c_i in float64; c itself as devices have it


@dataclass(frozen=True)
class Scaffold:
    """What is known before a round.

    Attributes:
        lr: Devices' learning rate.
        holders: Devices that have a control variate which counts.
    """

    lr: float
    holders: Collection[str] = ()


class Heard(Protocol):
    """An answer to training that was let in; see `learning.Answer`."""

    @property
    def device_id(self) -> str: ...

    @property
    def update(self) -> Update: ...

    @property
    def norm(self) -> float | None: ...

    @property
    def steps(self) -> int: ...


H = TypeVar("H", bound=Heard)


class Tally:
    """Adds up control variates while updates stream by.

    Args:
        scaffold: What is known.
        opened: The step.
        part: This part of the memory, as `part` gave it after the round before; empty: zeros.
    """

    def __init__(self, scaffold: Scaffold, opened: StepOpened, part: Memory) -> None:
        self._scaffold, self._opened = scaffold, opened
        self._sum = _named(part, SUM)
        self._now = _named(part, NOW)
        self._holders = set(scaffold.holders)

    def heard(self, answers: Iterable[H]) -> Iterator[H]:
        """The same answers; in their order what counts is added up."""
        bounds = bounds_of(self._opened)
        for answer in answers:
            if counts(bounds, answer.norm, answer.steps):
                known = answer.update.delta, answer.steps, self._scaffold.lr
                for name, change in change_of(self._now, *known).items():
                    self._sum[name] = self._sum.get(name, 0.0) + change
                self._holders.add(answer.device_id)
            yield answer

    def part(self) -> Memory:
        """The part of the memory after the round; empty while nothing has counted.

        c is over the devices that could be asked, or all that hold a variate where these are more.
        """
        devices = max(self._opened.population, len(self._holders), 1)
        now = {name: (total / devices).astype(np.float32) for name, total in self._sum.items()}
        sums = {f"{SUM}{name}": total for name, total in self._sum.items()}
        return sums | {f"{NOW}{name}": one for name, one in now.items()}


def counts(bounds: Bounds, norm: float | None, steps: int) -> bool:
    """Whether an update of this norm changes c: it said its steps, and was not scaled down."""
    return steps > 0 and (norm is None or bounds.share(norm) == 1.0)


def control_in(part: Memory) -> AdapterState:
    """c as devices fetch it; empty while it is zero."""
    return _named(part, NOW)


def scaffold_of(training: Training, holders: Collection[str]) -> Scaffold | None:
    """What a run's next round needs to know; None where it goes without control variates."""
    return Scaffold(training.lr, holders) if training.scaffold else None


def _named(part: Memory, kind: str) -> Memory:
    return {key.removeprefix(kind): one for key, one in part.items() if key.startswith(kind)}
