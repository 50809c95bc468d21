"""Events as JSON and back: one line of the journal each."""

import json
from dataclasses import asdict

import msgspec

from coordinator.rounds import Answered, Event, Finished, Resumed, StepClosed, StepOpened

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
