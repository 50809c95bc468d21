"""Devices that do not answer: how often in a row, and when they are asked again.

A device whose step closes by its deadline without it has missed it, and rests: one step after the
first miss, then two, four and so on, `LONGEST_REST` at most, so it is never forgotten. Any answer
in time makes it as good as new.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

LONGEST_REST = 64  # steps


@dataclass(frozen=True)
class Silence:
    """A device that has not answered lately.

    Attributes:
        misses: Steps in a row that closed without it.
        rests_until: Number of the first step of the run that it may be asked in again, from 1.
    """

    misses: int
    rests_until: int


def rest_after(misses: int) -> int:
    """Steps that a device rests which has missed so many in a row, one or more."""
    rest: int = 2 ** min(misses - 1, 30)
    return min(rest, LONGEST_REST)


def after_step(
    silences: Mapping[str, Silence],
    asked: Collection[str],
    answered: Collection[str],
    step_number: int,
) -> Mapping[str, Silence]:
    """Who is silent once a step is over.

    Args:
        silences: Who was before, by device.
        asked: Its members.
        answered: Those that answered in time, failures too.
        step_number: The step's place among all steps of the run, from 1.

    Returns:
        The same object where nothing has changed.
    """
    back = [name for name in answered if name in silences]
    missing = set(asked) - set(answered)
    if not back and not missing:
        return silences
    found = dict(silences)
    for name in back:
        del found[name]
    for name in missing:
        misses = found[name].misses + 1 if name in found else 1
        found[name] = Silence(misses, step_number + 1 + rest_after(misses))
    return found


def awake(
    device_ids: Collection[str], silences: Mapping[str, Silence], step_number: int
) -> set[str]:
    """Those of some devices that do not rest in a step."""
    return {
        name
        for name in device_ids
        if name not in silences or silences[name].rests_until <= step_number
    }
