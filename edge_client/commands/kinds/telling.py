"""What is said of the answers of one kind of task: on a screen, in files, as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from edge_client.formats.annotation.answers import Proposal
from edge_client.formats.dialect import find
from edge_client.formats.reader import Reason
from edge_client.texts.accounting import Accounting, value_of
from edge_client.texts.examples import Found

Told = TypeVar("Told")


class Skipped(NamedTuple):
    """A row without an answer, which has a row of its own among the answers all the same.

    Attributes:
        id: What its `id` column says, or empty.
        reason: Why it was left out.
    """

    id: str
    reason: Reason

    def as_json(self, *empty: str) -> dict[str, Any]:
        """A row whose answer is null, by the names of what an answer has."""
        own = {"id": self.id} if self.id else {}
        return {**dict.fromkeys(empty), **own, "left_out": self.reason}


def skipped(found: Found) -> Skipped:
    """What stands in a row's place; one with a text lacks what the task asks for beside it."""
    reason = found.reason if found.example is None else "columns"
    return Skipped(found.id or value_of(found.row, find(list(found.row), "id")), reason)


class Telling(Protocol[Told]):
    """How `client predict` reads texts and tells of them."""

    @property
    def done(self) -> str:
        """What was done with the texts, in a word."""

    def check(self, out: Path | None) -> None:
        """Refuse a file of answers that cannot be written.

        Raises:
            OutputError: Another ending, somebody's own file, or a place that cannot be written to.
        """

    def answers(self, texts: Iterable[Found], accounting: Accounting) -> Iterator[Told]:
        """One of each text, in order; the other rows are counted in `accounting`."""

    def results(
        self, out: Path | None, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Told | Skipped], None]]:
        """Writes each answer, or row without one, to a file; without a file, nothing."""

    @property
    def can_propose(self) -> bool:
        """Whether its answers can be corrected in an annotation tool."""

    def proposal(self, answer: Told) -> Proposal:
        """For an annotation tool, where it can be corrected."""

    def line(self, answer: Told) -> str:
        """For a screen."""

    def counted(self, answer: Told) -> Sequence[str]:
        """What is counted of it."""

    def collected(self, kept: Sequence[Told]) -> dict[str, Any]:
        """All of them as JSON."""

    def summary(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Beside the number of texts, where the answers are in a file."""
