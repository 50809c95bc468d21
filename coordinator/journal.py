"""What happened in a run, event by event; each is one line of JSON in its journal."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

import msgspec

Kind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class StepOpened:
    """Devices are asked to train from, or evaluate, an adapter.

    Attributes:
        kind: `train` or `evaluate`.
        round_index: 1-based server step; 0 is the evaluation before any training.
        attempt: 1-based; a training round with too few updates is tried again.
        adapter_sha256: What the members start from.
        members: (work_id, device_id) of everyone asked, by device id.
        opened_at_s: Unix time; the deadline counts from here.
    """

    kind: Kind
    round_index: int
    attempt: int
    adapter_sha256: str
    members: tuple[tuple[str, str], ...]
    opened_at_s: float


@dataclass(frozen=True)
class Answered:
    """A member's answer, already on disk.

    Attributes:
        work_id: The work it answers.
        outcome: `done`, or `failed`, which counts as answered too.
        update_sha256: Blob of the update, for training that is done.
        num_examples: The update's weight in the mean.
    """

    work_id: str
    outcome: Literal["done", "failed"]
    update_sha256: str | None
    num_examples: int


@dataclass(frozen=True)
class StepClosed:
    """A step is over.

    Attributes:
        adapter_sha256: The adapter after it. `decide` leaves None when a training step has to be
            aggregated first; whoever does that fills it in before the event is written.
        closed_at_s: Unix time.
    """

    adapter_sha256: str | None
    closed_at_s: float


@dataclass(frozen=True)
class Resumed:
    """The coordinator is back; the open step's deadline counts from here, so that a crash of the
    coordinator costs no device its place.
    """

    resumed_at_s: float


@dataclass(frozen=True)
class Finished:
    """All rounds are done and the last adapter is evaluated."""

    finished_at_s: float


Event = StepOpened | Answered | StepClosed | Resumed | Finished


KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (StepOpened, Answered, StepClosed, Resumed, Finished)
}


def encode_event(event: Event) -> str:
    """One event as JSON with sorted keys."""
    return json.dumps({"event": type(event).__name__, **asdict(event)}, sort_keys=True)


def decode_event(line: str) -> Event:
    """The event that `encode_event` wrote; the inverse for every event.

    Raises:
        ValueError: Written by another version, or damaged.
    """
    try:
        fields = json.loads(line)
        event: Event = msgspec.convert(fields, KINDS[fields.pop("event")], strict=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the journal holds a line that is no event: {line[:80]!r}") from error
    return event
