"""Which devices a step asks; in asynchronous training, whoever is idle, from the newest version.

Nothing here waits or loops; `rounds.machine.decide` calls it when it is time. Work belongs to the
open step, or to asynchronous training in progress.
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from smidgen.coordinator.rounds.events import AlsoAsked, Answered, Kind, StepOpened
from smidgen.coordinator.rounds.policies import FULL, RESTS, TRAINED, choose, passed_over
from smidgen.coordinator.rounds.schedule import Schedule
from smidgen.coordinator.rounds.scheduling.participation import awake
from smidgen.coordinator.rounds.scheduling.step import Works, busy, given_up, room_for
from smidgen.coordinator.rounds.selection import Chosen, Facts, candidates
from smidgen.coordinator.rounds.state import State


def is_asked(state: State, work_id: str) -> bool:
    """Whether an answer to some work may count, or does until its step closes."""
    return work_id in state.underway or bool(state.step and work_id in state.step.members)


def answer_to(state: State, work_id: str) -> Answered | None:
    """The answer that some work has; None where it has none, or is not asked."""
    if work_id in state.underway:
        return state.underway[work_id].answer
    return state.step.answers.get(work_id) if state.step else None


def asked_at_s(state: State, work_id: str) -> float:
    """Unix time at which some work was asked for, or since which the coordinator is back."""
    works = asynchronous(state)
    if work_id in works:
        return works[work_id].asked_at_s
    return state.step.opened.opened_at_s if state.step else 0.0


def asynchronous(state: State) -> Works:
    """Training of asynchronous rounds that is not over."""
    return state.step.works if state.step and state.step.works else state.underway


def works_of(state: State) -> dict[str, str]:
    """Each device's work, by its id: what it is still at, else that of the open step."""
    fresh = {name: key for key, name in state.step.members.items()} if state.step else {}
    return fresh | {one.device_id: key for key, one in state.underway.items() if not one.answer}


def train_on(
    config: Schedule,
    state: State,
    alive: Collection[str],
    least: Sequence[float],
    secret: str,
    now_s: float,
    attempt: int,
    facts: Facts,
) -> StepOpened | None:
    """A step of asynchronous training: what is underway goes on, and idle devices join it.

    None where both are too few for `min_updates`.

    Args:
        config: The run, which is asynchronous.
        state: The run's state.
        alive: Who is there.
        least: Least confidence of a pseudo-label, by label.
        secret: The run's.
        now_s: Unix time.
        attempt: 1-based.
        facts: What is known of devices.
    """
    rule, round_index = config.asynchronous, state.round_index + 1
    assert rule is not None
    works = state.step.left_over(is_closed=False) if state.step else state.underway
    lost = given_up(works, round_index, rule.most_staleness, config.deadline_s, now_s)
    silent = {works[key].device_id for key in lost}  # it rests now
    works = {key: one for key, one in works.items() if key not in lost}
    at = round_index, attempt
    asked_now = {one.device_id for one in works.values() if one.round_index == round_index}
    rested = awake(alive, state.silences, state.steps + 1) - silent
    able = candidates(rested | busy(works), state.texts, state.confidences, least)
    enough = max(rule.enough(len(able)), config.min_updates)
    # Where enough is there for a version at once, nobody is asked to start from the one before.
    is_full = sum(one.answer is not None for one in works.values()) >= enough
    for there in [set[str]()] if is_full else [rested, set(alive)]:
        idle = there - asked_now - busy(works)
        chosen, why_not = _idle(config, state, idle, works, least, secret, at, facts)
        if len(chosen) + len(works) >= max(1, config.min_updates):
            opened = open_step(state.adapter_sha256, "train", *at, chosen, secret, now_s)
            opened = replace(opened, enough=enough, is_asynchronous=True, given_up=lost)
            could = able if is_full else candidates(idle, state.texts, state.confidences, least)
            others = dict.fromkeys(able, FULL) if is_full else dict(why_not)
            others |= dict.fromkeys(silent, RESTS) | dict.fromkeys(asked_now, TRAINED)
            told = passed_over(state, alive, {*could, *others}, chosen, others, busy(works))
            return replace(opened, passed=told)
    return None


def also_asked(
    config: Schedule,
    state: State,
    alive: Collection[str],
    least: Sequence[float],
    secret: str,
    now_s: float,
    facts: Facts,
) -> AlsoAsked | None:
    """More devices for the open step, which is asynchronous; None where nobody is idle.

    None is asked twice to train from the same version: it would say the same again, and a quick one
    could fill the buffer by itself.

    Args:
        config, state, alive, least, secret, now_s, facts: As `train_on` takes them.
    """
    step = state.step
    if step is None or config.asynchronous is None:
        return None
    at = step.opened.round_index, step.opened.attempt
    works = {key: replace(one, answer=step.answers.get(key)) for key, one in step.works.items()}
    asked_now = {one.device_id for one in works.values() if one.round_index == at[0]}
    rested = awake(alive, state.silences, state.steps + 1)
    idle = rested - asked_now - busy(works)
    chosen, _ = _idle(config, state, idle, works, least, secret, at, facts)
    return AlsoAsked(members_of(chosen, secret, "train", *at), now_s) if chosen else None


def _idle(
    config: Schedule,
    state: State,
    there: Collection[str],
    works: Works,
    least: Sequence[float],
    secret: str,
    at: tuple[int, int],
    facts: Facts,
) -> Chosen:
    """Devices that may train beside those that do, as many as there is room for."""
    assert config.asynchronous is not None
    able = candidates(sorted(there), state.texts, state.confidences, least)
    room = room_for(config.asynchronous.concurrency, len(busy(works)), len(able))
    return choose(config, state, able, room, secret, at, least, facts)


def work_secret(state: State, secret: str) -> str:
    """What work ids are derived from: no answer to a round that was given up counts in its next."""
    return f"{secret}\x1f{state.forgets}" if state.forgets else secret


def open_step(
    adapter_sha256: str,
    kind: Kind,
    round_index: int,
    attempt: int,
    chosen: Iterable[str],
    secret: str,
    now_s: float,
) -> StepOpened:
    """A step that asks all chosen; the same arguments give the same work ids."""
    members = members_of(chosen, secret, kind, round_index, attempt)
    return StepOpened(kind, round_index, attempt, adapter_sha256, members, now_s)


def members_of(chosen: Iterable[str], secret: str, *at: str | int) -> tuple[tuple[str, str], ...]:
    """(work_id, device_id) of everyone asked."""
    return tuple((_work_id(secret, *at, device_id), device_id) for device_id in chosen)


def _work_id(secret: str, *work: str | int) -> str:
    text = "\x1f".join(str(part) for part in work)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]
