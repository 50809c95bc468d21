"""Folding a journal: when it is long, and the event that stands for all events of it.

What it says is read back by `rounds.state.evolve`, `rounds.history` and `upkeep.retention`; each of
them takes it for whatever it folded before, so a journal may be folded any number of times.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from coordinator.rounds.events import Folded, StepOpened
from coordinator.rounds.history import Past
from coordinator.rounds.state import State

LONG = 2000  # events; of two devices about 200 rounds
TIMES = 4  # as many answers as the newest steps ask for: what is written then is a part of those


def is_long(events: int, steps: Sequence[StepOpened]) -> bool:
    """Whether a journal is folded.

    Args:
        events: How many it holds.
        steps: The newest ones; what stands for the events before repeats them.
    """
    return events >= LONG + TIMES * sum(len(opened.members) for opened in steps)


def folded_from(
    events: int,
    state: State,
    past: Past,
    shelf: dict[str, Any],
    steps: Iterable[StepOpened],
    counted: Iterable[str],
) -> Folded:
    """The event that stands for all so far; see `events.Folded`."""
    known = to_plain(state), to_plain(past), shelf
    return Folded(events, *known, tuple(steps), tuple(counted))


def to_plain(known: object) -> dict[str, Any]:
    """What is known, as plain JSON that `msgspec.convert` reads back equal."""
    plain: dict[str, Any] = msgspec.to_builtins(
        known, str_keys=True, enc_hook=_mapping, order="sorted"
    )
    return plain


def _mapping(known: object) -> object:
    if isinstance(known, Mapping):
        return dict(known)
    raise TypeError(f"{type(known).__name__} is not JSON")
