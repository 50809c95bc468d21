"""The open step: what was asked of whom, who has answered, and which answers count."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.rounds.events import Answered, StepOpened


@dataclass(frozen=True)
class Step:
    """The open step: what was asked of whom, and who has answered by work id."""

    opened: StepOpened
    members: Mapping[str, str]  # work_id -> device_id
    answers: Mapping[str, Answered] = field(default_factory=dict)
    is_measured: bool = True  # no restart came in between

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

    def updates(self) -> list[tuple[str, Answered]]:
        """(device_id, answer) of everyone who is done, by device id."""
        done = [(self.members[key], item) for key, item in self.answers.items()]
        return sorted(
            (pair for pair in done if pair[1].outcome == "done"), key=lambda pair: pair[0]
        )
