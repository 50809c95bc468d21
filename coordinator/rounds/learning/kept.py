"""Whose kept things go on from which round: control variates, and what coded updates left out.

A device keeps both by round, beside those of the round before: whether an update counted is known
when its step is closed, and said with the next work. So what a device made of an update that came
late, was turned away, or went into an adapter that was not taken, counts no more than that update.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.rounds.bounds import bounds_of
from coordinator.rounds.events import Answered, StepOpened
from coordinator.rounds.learning.scaffold import counts

Rounds = Mapping[str, int]  # device -> round


class Closed(Protocol):
    """A training step whose adapter was taken; see `coordinator.rounds.pace.step.Step`."""

    @property
    def opened(self) -> StepOpened: ...

    def updates(self) -> Sequence[tuple[str, Answered]]: ...


@dataclass(frozen=True)
class Kept:
    """The last rounds of devices that keep something.

    Attributes:
        controls: In which their update changed the population's control variate.
        residuals: In which their coded update counted.
    """

    controls: Rounds = field(default_factory=dict)
    residuals: Rounds = field(default_factory=dict)


def kept_after(kept: Kept, step: Closed, has_control: bool) -> Kept:
    """The same after a training step.

    Args:
        kept: Before it.
        step: The step.
        has_control: Whether it gave the population a control variate.
    """
    opened, controls, residuals = step.opened, dict(kept.controls), dict(kept.residuals)
    for name, one in step.updates():
        if has_control and counts(bounds_of(opened), one.norm, one.steps):
            controls[name] = opened.round_index
        if opened.codec:
            residuals[name] = opened.round_index
    return Kept(controls, residuals)
