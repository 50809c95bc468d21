"""State kept per device between rounds: of its update steps, and of the adapters it holds.

States are kept by round, beside those of the round before: whether an update counted is known only
when its step closes, and is sent with the next work. So state from an update that was late, refused
or discarded counts no more than the update. With coded steps, this state leads a device from one
of the last few adapters to the newest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.rounds.events import Answered, StepClosed, StepOpened
from edge_client.wire.messages import CodedStep

MOST_STEPS = 8  # that a device is led by; each is a request
Rounds = Mapping[str, int]  # device -> round


class Closed(Protocol):
    """A training step whose adapter was taken; see `coordinator.rounds.scheduling.step.Step`."""

    @property
    def opened(self) -> StepOpened: ...

    def updates(self) -> Sequence[tuple[str, Answered]]: ...


@dataclass(frozen=True)
class DeviceStates:
    """What counts of what devices keep.

    Attributes:
        rounds: By update step the last rounds in which their update counted for it.
        steps: The newest coded steps up to the run's adapter, the oldest first.
    """

    rounds: Mapping[str, Rounds] = field(default_factory=dict)
    steps: tuple[CodedStep, ...] = ()

    def steps_to(self, adapter_bytes: int) -> tuple[CodedStep, ...]:
        """Those of the steps that together are smaller than the adapter to which they lead.

        Args:
            adapter_bytes: Its size.
        """
        found: tuple[CodedStep, ...] = ()
        for step in reversed(self.steps):
            adapter_bytes -= step.step_bytes
            if adapter_bytes <= 0:
                break
            found = (step, *found)
        return found


def kept_after(kept: DeviceStates, step: Closed, event: StepClosed) -> DeviceStates:
    """The same after a training step.

    Args:
        kept: Before it.
        step: The step.
        event: That it closed.
    """
    opened, rounds = step.opened, dict(kept.rounds)
    for device_id, answer in step.updates():
        for name in answer.counted:
            rounds[name] = {**rounds.get(name, {}), device_id: opened.round_index}
    if not event.step_sha256:
        return DeviceStates(rounds)
    coded = CodedStep(opened.adapter_sha256, event.step_sha256, event.step_bytes)
    return DeviceStates(rounds, (*kept.steps, coded)[-MOST_STEPS:])
