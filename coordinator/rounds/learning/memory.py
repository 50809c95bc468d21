"""State between rounds: the server's, stored as one blob, and what is kept per device.

The journal names it by its hash, as the adapter it belongs to, so a replay and a coordinator that
was killed have the same. It has named parts:

    memory = with_part(memory, "optimizer", {"momentum.lora_A": moments})
    part_of(memory, "optimizer")["momentum.lora_A"]

States are kept by round, beside those of the round before: whether an update counted is known only
when its step closes, and is sent with the next work. So state from an update that was late, refused
or discarded counts no more than the update. With coded steps, this state leads a device from one
of the last few adapters to the newest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from smidgen.coordinator.rounds.events import Answered, StepClosed, StepOpened
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.wire.messages import CodedStep

Memory: TypeAlias = dict[str, np.ndarray]


class UnreadableError(Failed):
    """What a run remembers cannot be read."""


def part_of(memory: Memory, part: str) -> Memory:
    """The tensors of a part, by their names in it; none where nothing is remembered."""
    start = f"{part}/"
    return {key.removeprefix(start): one for key, one in memory.items() if key.startswith(start)}


def with_part(memory: Memory, part: str, tensors: Mapping[str, np.ndarray]) -> Memory:
    """The memory with a part that takes the place of what it was; the others stay."""
    others = {key: one for key, one in memory.items() if not key.startswith(f"{part}/")}
    return others | {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def encode_memory(memory: Memory) -> bytes:
    """As safetensors, every tensor in its own type; equal memories give equal bytes."""
    return bytes(
        save_safetensors({key: np.require(memory[key], None, "C") for key in sorted(memory)})
    )


def decode_memory(body: bytes) -> Memory:
    """The inverse of `encode_memory`; of no bytes an empty memory.

    Raises:
        UnreadableError: Not safetensors.
    """
    if not body:
        return {}
    try:
        return dict(load_safetensors(body))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(
            f"what the run remembers is not a safetensors file: {error}"
        ) from error


MOST_STEPS = 8  # that a device is led by; each is a request
Rounds = Mapping[str, int]  # device -> round


class Closed(Protocol):
    """A training step whose adapter was taken; see `smidgen.coordinator.rounds.scheduling.step`."""

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
