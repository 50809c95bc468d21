"""Whom a training step asks by the run's policy, and why not the others, for the journal."""

from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from coordinator.rounds.events import Passed
from coordinator.rounds.schedule import Schedule
from coordinator.rounds.scheduling.participation import awake
from coordinator.rounds.selections.policies import NOT_DRAWN, selection_of
from coordinator.rounds.selections.selection import Asking, Chosen, Facts
from coordinator.rounds.state import State

NAMED = 8  # devices of each reason
RESTS, TRAINS, NO_TEXTS = "rests after silence", "still trains", "no text to train on"
FULL, TRAINED = "enough updates are there already", "has trained from this adapter"


def choose(
    config: Schedule,
    state: State,
    names: Sequence[str],
    size: int,
    secret: str,
    at: tuple[int, int],
    least: Sequence[float],
    facts: Facts,
) -> Chosen:
    """Ask the run's policy.

    Args:
        config: The run.
        state: The run's state.
        names: Who may be asked.
        size: Most that are.
        secret: The run's.
        at: Round and attempt.
        least: Least confidence of a pseudo-label, by label.
        facts: What is known of devices.
    """
    if size < 1 or not names:
        return (), {}
    asking = Asking(
        tuple(sorted(names)),
        size,
        secret,
        *at,
        texts=state.texts,
        confidences=state.confidences,
        thresholds=tuple(least),
        heard=state.heard,
        memory=facts.memory,
        tags=facts.tags,
    )
    return selection_of(config.learning).choose(asking)


def passed_over(
    state: State,
    alive: Collection[str],
    names: Collection[str],
    chosen: Collection[str],
    why_not: Mapping[str, str],
    at_work: Collection[str] = (),
) -> tuple[Passed, ...]:
    """Why devices that are there are not asked: each once, by reason, the most frequent first.

    Args:
        state: The run's state.
        alive: Who is there.
        names: Who of them could be asked.
        chosen: Who is.
        why_not: What the policy says of some.
        at_work: Who still trains.
    """
    up, reasons = awake(alive, state.silences, state.steps + 1), dict[str, list[str]]()
    able = set(names)  # a list would be walked through for each of those that are there
    for name in set(alive) - set(chosen):
        if name in at_work:
            reason = TRAINS
        elif name in able:
            reason = why_not.get(name, NOT_DRAWN)
        else:
            reason = NO_TEXTS if name in up else RESTS
        reasons.setdefault(reason, []).append(name)
    ordered = sorted(reasons.items(), key=lambda one: (-len(one[1]), one[0]))
    return tuple(
        Passed(reason, len(some), tuple(nsmallest(NAMED, some))) for reason, some in ordered
    )
