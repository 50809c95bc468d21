"""What is said of the answers of one kind of task: on a screen, in files, as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from edge_client.api.labeller import Left
from edge_client.formats.annotation.answers import Proposal
from edge_client.texts.examples import Found

Told = TypeVar("Told")


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

    def answers(self, texts: Iterable[Found], left: Left) -> Iterator[Told]:
        """One of each text, in order; those without a text go to `left`."""

    def results(
        self, out: Path | None, *, has_id: bool
    ) -> AbstractContextManager[Callable[[Told], None]]:
        """Writes each answer to a file; without one, nothing."""

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
