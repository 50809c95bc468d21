"""Lines of the log on devices that rest because they did not answer, and that are back."""

from collections.abc import Collection, Mapping

from coordinator.rounds.events import Event, StepClosed, StepOpened
from coordinator.rounds.pace.silence import Silence, rest_after
from coordinator.rounds.state import State
from coordinator.serving.ledger import Live
from coordinator.serving.log.steps import listed
from coordinator.serving.telling import Names


def pace_texts(live: Live, event: Event, after: State, names_of: Names) -> list[str]:
    """Lines on devices that begin to rest, are asked again, or answer again; see `rounds.pace`.

    As many as there are lengths of a rest at most, whatever the number of devices.

    Args:
        live: The run before the event.
        event: A step that opened or closed.
        after: The run's state after it.
        names_of: Names of devices.
    """
    before, now = live.state.silences, after.silences
    if not isinstance(event, StepOpened | StepClosed) or not (before or now):
        return []
    found: list[str] = []
    members = event.members if isinstance(event, StepOpened) else ()  # it may follow a lost step
    asked = {key for _, key in members} & now.keys()
    silent = {key for key, one in now.items() if before.get(key) != one} - asked
    for misses, names in _by_misses(now, silent, names_of):
        rest = _steps(rest_after(misses))
        found.append(f"{names}: no answer in time; asked again after a rest of {rest}")
    for misses, names in _by_misses(now, asked, names_of):
        found.append(f"{names}: asked again after {_steps(misses)} without an answer")
    if back := before.keys() - now.keys():
        found.append(f"{listed(names_of(back))}: answered again; asked as often as others")
    return [f"{live.config.name}: {text}" for text in found]


def _by_misses(
    silences: Mapping[str, Silence], device_ids: Collection[str], names_of: Names
) -> list[tuple[int, str]]:
    """Devices that missed equally many steps in a row, their names in a line."""
    by_misses: dict[int, list[str]] = {}
    for device_id in device_ids:
        by_misses.setdefault(silences[device_id].misses, []).append(device_id)
    return [(misses, listed(names_of(some))) for misses, some in sorted(by_misses.items())]


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
