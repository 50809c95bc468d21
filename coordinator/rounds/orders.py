"""Operators' orders (pause, extend, roll back, stop, ...) and the events that carry them out.

Pure: the same order on the same state gives the same event. An order that has no effect, such as
pausing a paused run, or is no longer possible, is refused with a reason.
"""

from collections.abc import Mapping
from typing import Literal

from smidgen.coordinator.rounds.events import (
    Event,
    Extended,
    Finished,
    Paused,
    RolledBack,
    Unpaused,
)
from smidgen.coordinator.rounds.machine import rounds_of
from smidgen.coordinator.rounds.schedule import Schedule, check_decay
from smidgen.coordinator.rounds.state import State
from smidgen.edge_client.errors import WrongInput

OrderKind = Literal["pause", "resume", "stop", "extend", "rollback", "forget"]
MOST_ROUNDS = 1_000_000  # as in a run file


class OrderError(ValueError):
    """An order that the run, as it stands, cannot follow; says why and what to do."""


def event_of(
    kind: OrderKind,
    rounds: int | None,
    config: Schedule,
    state: State,
    now_s: float,
    adapters: Mapping[int, str] | None = None,
) -> Event:
    """The event that carries out an order.

    Args:
        kind: What is asked.
        rounds: Of `extend`, rounds until the run is finished, all in all; of `rollback` the round
            to go back to.
        config: The run.
        state: The run's state.
        now_s: Unix time.
        adapters: By round, those that are still there; needed to go back.

    Raises:
        OrderError: It cannot be followed.
    """
    if kind == "forget":
        raise OrderError("whoever serves it takes out what the devices to forget have given")
    if kind == "extend":
        return _extended(rounds, config, state, now_s)
    if kind == "rollback":
        return _rolled_back(rounds, adapters or {}, now_s)
    if state.is_finished:
        ended = "stopped" if state.is_stopped else "finished"
        raise OrderError(f"it is {ended}; `extend` lets it go on")
    if kind == "stop":
        return Finished(now_s, is_stopped=True)
    if (kind == "pause") == state.is_paused:
        raise OrderError("it is paused already" if state.is_paused else "it is not paused")
    return Paused(now_s) if kind == "pause" else Unpaused(now_s)


def _rolled_back(index: int | None, adapters: Mapping[int, str], now_s: float) -> Event:
    if index is None or index not in adapters:
        known = ", ".join(map(str, sorted(adapters))) or "none"
        raise OrderError(
            f"the adapter after round {index} is not there; those of rounds {known} are"
        )
    return RolledBack(index, adapters[index], "its operator ordered it", now_s, is_ordered=True)


def _extended(rounds: int | None, config: Schedule, state: State, now_s: float) -> Event:
    # A run that was stopped may go on to where it was to end; another one has that before it.
    have = state.round_index if state.is_stopped else rounds_of(config, state)
    if rounds is None or not have < rounds <= MOST_ROUNDS:
        raise OrderError(
            f"it has {have} rounds; {'none' if rounds is None else rounds} came as the rounds "
            f"until it is finished, all in all: {have + 1} to {MOST_ROUNDS} are expected"
        )
    try:
        check_decay(config.learning, rounds)
    except WrongInput as error:
        raise OrderError(f"{error}; extend it to fewer rounds") from error
    return Extended(rounds, now_s)
