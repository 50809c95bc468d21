"""Buffered asynchronous training (FedBuff): work on several versions of the adapter at once.

A training step closes when its buffer is full. Work asked by then but unanswered goes on and counts
in a later step. So do answers beyond the buffer, or between two steps.

    step, underway = ...
    underway = left_over(step)             # when the step closes
    asked = begun(opened, underway)        # when the next one opens
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from coordinator.rounds.events import Answered, StepOpened


@dataclass(frozen=True)
class Underway:
    """Training that a device was asked for.

    Attributes:
        device_id: Who was asked.
        round_index: Of the step that asked: one more than the version it started from.
        adapter_sha256: What it starts from.
        asked_at_s: Unix time; after a restart, when the coordinator was back.
        answer: Its answer, once it is there.
    """

    device_id: str
    round_index: int
    adapter_sha256: str
    asked_at_s: float
    answer: Answered | None = None


Works = Mapping[str, Underway]  # by work id


def asked_of(
    opened: StepOpened, members: Iterable[tuple[str, str]], asked_at_s: float
) -> dict[str, Underway]:
    """What a step asks of more devices."""
    known = opened.round_index, opened.adapter_sha256, asked_at_s
    return {work_id: Underway(device_id, *known) for work_id, device_id in members}


def begun(opened: StepOpened, works: Works) -> dict[str, Underway]:
    """All work of a step that opens: what goes on, but for what is given up, and what is new.

    What was answered before comes first, by version, then device: its order of arrival is nowhere
    to be found once a journal is folded.
    """
    kept = {key: one for key, one in works.items() if key not in opened.given_up}
    ordered = sorted(kept, key=lambda key: (kept[key].round_index, kept[key].device_id, key))
    fresh = asked_of(opened, opened.members, opened.opened_at_s)
    return {key: kept[key] for key in ordered} | fresh


def left_over(works: Works, answers: Mapping[str, Answered], counted: set[str]) -> Works:
    """What goes on after a step: work without an answer, and updates that did not fit the buffer.

    Args:
        works: All work of the step.
        answers: Those that came.
        counted: Work ids of the updates that are in the new version.
    """
    told = {key: replace(one, answer=answers.get(key)) for key, one in works.items()}
    return {
        key: one
        for key, one in told.items()
        if one.answer is None or (one.answer.outcome == "done" and key not in counted)
    }


def with_answer(works: Works, answer: Answered | None, work_id: str) -> Works:
    """With an answer to some of it, or without the one it has."""
    return {**works, work_id: replace(works[work_id], answer=answer)}


def moved(works: Works, by_s: float = 0.0, to_s: float | None = None) -> Works:
    """As if all of it were asked so much later, or then."""
    if not works:
        return works
    return {
        key: replace(one, asked_at_s=one.asked_at_s + by_s if to_s is None else to_s)
        for key, one in works.items()
    }


def busy(works: Works) -> set[str]:
    return {one.device_id for one in works.values() if one.answer is None}


def given_up(
    works: Works, round_index: int, most_staleness: int, deadline_s: float, now_s: float
) -> tuple[str, ...]:
    """Work that counts no more in a step that opens now, in order of its ids.

    It is too many versions old, or its device has not answered for longer than a step waits.

    Args:
        works: What is underway.
        round_index: Of the step.
        most_staleness: Versions that an update may be old.
        deadline_s: Seconds that a device has for an answer.
        now_s: Unix time.
    """
    return tuple(
        key
        for key, one in sorted(works.items())
        if round_index - one.round_index > most_staleness
        or (one.answer is None and now_s - one.asked_at_s >= deadline_s)
    )


def room_for(concurrency: int, at_work: int, idle: int) -> int:
    """How many more may be asked; never more than are idle."""
    return min(idle, max(0, concurrency - at_work)) if concurrency else idle
