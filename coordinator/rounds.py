"""Rounds as a pure state machine over a journal of events.

A run is a row of steps: evaluate the adapter it starts from (round 0), train round 1, evaluate,
train round 2 and so on. `evolve` folds an event into the state; `decide` says which event is due
next. Time, secrets and who is there come in as arguments, so a journal replayed after `kill -9`
gives the state that was lost.
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Protocol

from coordinator.journal import (
    Answered,
    Event,
    Finished,
    Kind,
    Resumed,
    StepClosed,
    StepOpened,
)
from coordinator.selection import cohort


class Schedule(Protocol):
    """How the rounds of a run follow each other; see `coordinator.config.RunConfig`."""

    @property
    def rounds(self) -> int:
        """Server steps until the run is finished."""

    @property
    def fraction(self) -> float:
        """C of FedAvg, share of the devices asked per round."""

    @property
    def min_clients(self) -> int:
        """Devices that must be there before the first round."""

    @property
    def min_updates(self) -> int:
        """Updates without which no round is closed."""

    @property
    def deadline_s(self) -> float:
        """Seconds after which a step stops waiting."""

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations; 0 for only before the first and after the last."""

    @property
    def seed(self) -> int:
        """Root seed of the run."""


@dataclass(frozen=True)
class Step:
    """The open step: what was asked of whom, and who has answered by work id."""

    opened: StepOpened
    members: Mapping[str, str]  # work_id -> device_id
    answers: Mapping[str, Answered] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        """Whether nobody is left to wait for."""
        return len(self.answers) == len(self.members)

    def updates(self) -> list[tuple[str, Answered]]:
        """(device_id, answer) of everyone who is done, by device id."""
        done = [(self.members[key], item) for key, item in self.answers.items()]
        return sorted(
            (pair for pair in done if pair[1].outcome == "done"), key=lambda pair: pair[0]
        )


@dataclass(frozen=True)
class State:
    """Where a run stands.

    Attributes:
        adapter_sha256: The adapter of the last closed round.
        round_index: The last closed training round.
        evaluated: The last round whose adapter was evaluated, -1 for none.
        step: The open step.
        is_finished: Nothing more will be asked.
    """

    adapter_sha256: str
    round_index: int = 0
    evaluated: int = -1
    step: Step | None = None
    is_finished: bool = False

    @property
    def phase(self) -> str:
        """`waiting` (for devices), `train`, `evaluate` or `finished`."""
        if self.is_finished:
            return "finished"
        return self.step.opened.kind if self.step else "waiting"


def evolve(state: State, event: Event) -> State:
    """Fold one event into the state.

    An answer to work that is not open, or that is answered already, changes nothing.

    Raises:
        ValueError: A step is closed that is not open, or without the adapter after it.
    """
    if isinstance(event, StepOpened):
        return replace(state, step=Step(event, dict(event.members)))
    if isinstance(event, Answered):
        return _answered(state, event)
    if isinstance(event, Finished):
        return replace(state, step=None, is_finished=True)
    if isinstance(event, Resumed):
        if state.step is None:
            return state
        opened = replace(state.step.opened, opened_at_s=event.resumed_at_s)
        return replace(state, step=replace(state.step, opened=opened))
    if state.step is None or event.adapter_sha256 is None:
        raise ValueError("StepClosed needs an open step and the adapter after it")
    closed = state.step.opened
    if closed.kind == "evaluate":
        return replace(state, step=None, evaluated=closed.round_index)
    return replace(
        state, step=None, round_index=closed.round_index, adapter_sha256=event.adapter_sha256
    )


def _answered(state: State, answer: Answered) -> State:
    step = state.step
    if step is None or answer.work_id not in step.members or answer.work_id in step.answers:
        return state
    return replace(state, step=replace(step, answers={**step.answers, answer.work_id: answer}))


def replay(adapter_sha256: str, events: Iterable[Event]) -> State:
    """The state of a run that started from an adapter, after all its events."""
    return reduce(evolve, events, State(adapter_sha256))


def decide(
    config: Schedule, state: State, alive: Collection[str], secret: str, now_s: float
) -> Event | None:
    """The next event that is due, or None if there is something to wait for.

    Args:
        config: The run.
        state: Where it stands.
        alive: Ids of the devices that are there.
        secret: From which unguessable work ids are derived.
        now_s: Unix time.
    """
    if state.is_finished:
        return None
    if state.step is None:
        return _next_step(config, state, alive, secret, now_s)
    step, opened = state.step, state.step.opened
    is_overdue = now_s >= opened.opened_at_s + config.deadline_s
    if opened.kind == "evaluate":
        is_over = step.is_answered or is_overdue
        return StepClosed(state.adapter_sha256, now_s) if is_over else None
    if len(step.updates()) >= config.min_updates:
        return StepClosed(None, now_s) if step.is_answered or is_overdue else None
    # When everyone failed at once there is nobody to wait for, but no reason to ask in a hot loop.
    pause_s = min(config.deadline_s, 2.0 ** min(opened.attempt, 30))
    if is_overdue or (step.is_answered and now_s >= opened.opened_at_s + pause_s):
        return _train(config, state, alive, secret, now_s, opened.attempt + 1)
    return None


def _next_step(
    config: Schedule, state: State, alive: Collection[str], secret: str, now_s: float
) -> Event | None:
    is_last = state.round_index == config.rounds
    every = config.evaluate_every
    is_due = state.round_index == 0 or is_last or (every and state.round_index % every == 0)
    if is_due and state.evaluated < state.round_index:
        if len(alive) < (config.min_clients if state.round_index == 0 else 1):
            return None
        return _open(state, "evaluate", state.round_index, 1, sorted(alive), secret, now_s)
    if is_last:
        return Finished(now_s)
    return _train(config, state, alive, secret, now_s, 1)


def _train(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    attempt: int,
) -> StepOpened | None:
    round_index = state.round_index + 1
    chosen = cohort(alive, config.fraction, config.seed, round_index, attempt)
    if len(chosen) < config.min_updates:
        return None
    return _open(state, "train", round_index, attempt, chosen, secret, now_s)


def _open(
    state: State,
    kind: Kind,
    round_index: int,
    attempt: int,
    chosen: Iterable[str],
    secret: str,
    now_s: float,
) -> StepOpened:
    members = tuple(
        (_work_id(secret, kind, round_index, attempt, device_id), device_id) for device_id in chosen
    )
    return StepOpened(kind, round_index, attempt, state.adapter_sha256, members, now_s)


def _work_id(secret: str, *work: str | int) -> str:
    text = "\x1f".join(str(part) for part in work)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]
