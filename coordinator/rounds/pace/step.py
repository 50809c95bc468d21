"""The open step: what was asked of whom, who has answered, and which answers count."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coordinator.rounds.events import AlsoAsked, Answered, StepOpened
from coordinator.rounds.pace.underway import Underway, Works, asked_of, begun, left_over


@dataclass(frozen=True)
class Step:
    """The open step: what was asked of whom, and who has answered by work id."""

    opened: StepOpened
    members: Mapping[str, str]  # work_id -> device_id
    answers: Mapping[str, Answered] = field(default_factory=dict)
    is_measured: bool = True  # no restart came in between
    works: Mapping[str, Underway] = field(default_factory=dict)  # where it is asynchronous

    @property
    def is_full(self) -> bool:
        """Whether as many updates have come as it closes with; never where it waits for all."""
        return self.is_full_with(0)

    def is_full_with(self, more: int) -> bool:
        """The same once so many updates more are in."""
        enough = self.opened.enough
        if not enough:
            return False
        return enough <= more + sum(one.outcome == "done" for one in self.answers.values())

    @property
    def is_answered(self) -> bool:
        """Whether nobody is left to wait for."""
        return len(self.answers) == len(self.members) or self.is_full

    @property
    def is_failed(self) -> bool:
        """Whether everyone has answered, and everyone failed."""
        answers = self.answers.values()
        return self.is_answered and all(one.outcome == "failed" for one in answers)

    @property
    def turns_away(self) -> bool:
        """Whether an update that comes now is too late; where it is not, it is left for later."""
        return self.is_full and not self.opened.is_asynchronous

    def counted(self) -> list[str]:
        """Work ids of the updates that count, by version, then device.

        Those are the first that came where the step needs no more.
        """
        done = [key for key, one in self.answers.items() if one.outcome == "done"]
        enough = self.opened.enough or len(done)
        return sorted(done[:enough], key=lambda key: (self._version(key), self.members[key], key))

    def updates(self) -> list[tuple[str, Answered]]:
        """(device_id, answer) of all updates that count, in the order of `counted`."""
        return [(self.members[key], self.answers[key]) for key in self.counted()]

    def staleness(self, work_id: str) -> int:
        """Versions that were made since the work was asked for; 0 where none can be."""
        return self.opened.round_index - self._version(work_id)

    def left_over(self, is_closed: bool) -> Works:
        """What goes on after it; where it is not closed but asked for again, its updates too."""
        return left_over(self.works, self.answers, set(self.counted()) if is_closed else set())

    def _version(self, work_id: str) -> int:
        one = self.works.get(work_id)
        return self.opened.round_index if one is None else one.round_index


def step_of(opened: StepOpened, underway: Works) -> Step:
    """A step that has just opened.

    Args:
        opened: What it asks.
        underway: Training that goes on.
    """
    if not opened.is_asynchronous:
        return Step(opened, dict(opened.members))
    works = begun(opened, underway)
    answers = {key: one.answer for key, one in works.items() if one.answer is not None}
    members = {key: one.device_id for key, one in works.items()}
    return Step(opened, members, answers, works=works)


def asking_also(step: Step, event: AlsoAsked) -> Step:
    """An asynchronous step that asks more devices."""
    opened = replace(step.opened, members=(*step.opened.members, *event.members))
    works = {**step.works, **asked_of(opened, event.members, event.asked_at_s)}
    return replace(
        step, opened=opened, members={**step.members, **dict(event.members)}, works=works
    )
