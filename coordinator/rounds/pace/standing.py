"""How a piece of work stands: of the open step, or of asynchronous training that goes on."""

from coordinator.rounds.events import Answered
from coordinator.rounds.pace.underway import Works
from coordinator.rounds.state import State


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
