"""What each device's training last gave, as far as the choice of devices goes by it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coordinator.rounds.events import Answered


@dataclass(frozen=True)
class Heard:
    """A device's last training that counted.

    Attributes:
        round_index: Of it.
        examples: Texts that it says it trained on.
        took_s: Seconds that it took; None where nobody measured.
        loss: Mean loss that it says it had; None where it has not said.
    """

    round_index: int
    examples: int
    took_s: float | None = None
    loss: float | None = None


def after_training(
    heard: Mapping[str, Heard], round_index: int, told: Iterable[tuple[str, Answered]]
) -> dict[str, Heard]:
    """What is known after a training step; the loss that was told last stays."""
    found = dict(heard)
    for name, one in told:
        loss = heard[name].loss if name in heard else None
        found[name] = Heard(round_index, one.num_examples, one.took_s, loss)
    return found


def with_loss(heard: Mapping[str, Heard], device_id: str, loss: float) -> Mapping[str, Heard]:
    """What is known once a device has told its loss, which may be before its step closes."""
    known = heard.get(device_id, Heard(0, 0))
    return {**heard, device_id: replace(known, loss=loss)}
