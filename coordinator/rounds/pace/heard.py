"""What asking each device to train last gave, as far as the choice of devices goes by it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coordinator.rounds.events import AlsoAsked, Answered, StepOpened


@dataclass(frozen=True)
class Heard:
    """A device's last training that counted, and how often it was asked since.

    Attributes:
        round_index: Of it; 0 where none has counted.
        examples: Texts that it says it trained on.
        took_s: Seconds that it took; None where nobody measured.
        loss: Mean loss that it says it had; None where it has not said.
        tries: How often it was asked after that, and has failed, come late or not answered yet.
    """

    round_index: int
    examples: int
    took_s: float | None = None
    loss: float | None = None
    tries: int = 0


def after_asking(heard: Mapping[str, Heard], asked: StepOpened | AlsoAsked) -> Mapping[str, Heard]:
    """What is known once devices are asked: of each that is asked to train, one try more."""
    if isinstance(asked, StepOpened) and asked.kind != "train":
        return heard
    known = {name: heard.get(name, Heard(0, 0)) for _, name in asked.members}
    return {**heard, **{name: replace(one, tries=one.tries + 1) for name, one in known.items()}}


def after_training(
    heard: Mapping[str, Heard], round_index: int, told: Iterable[tuple[str, Answered]]
) -> dict[str, Heard]:
    """What is known after a training step; the loss that was told last stays.

    Whose training counted has no try that did not.
    """
    found = dict(heard)
    for name, one in told:
        loss = heard[name].loss if name in heard else None
        found[name] = Heard(round_index, one.num_examples, one.took_s, loss)
    return found


def with_loss(heard: Mapping[str, Heard], device_id: str, loss: float) -> Mapping[str, Heard]:
    """What is known once a device has told its loss, which may be before its step closes."""
    known = heard.get(device_id, Heard(0, 0))
    return {**heard, device_id: replace(known, loss=loss)}
