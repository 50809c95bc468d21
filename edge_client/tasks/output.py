"""`Formatter`: how answers of one kind of task appear on a screen, in files and as JSON."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO, TypeAlias, TypeVar

from smidgen.edge_client.formats.annotation.answers import Proposal
from smidgen.edge_client.formats.dialect import find
from smidgen.edge_client.formats.reader import Reason
from smidgen.edge_client.texts.accounting import Accounting, Fault, value_of
from smidgen.edge_client.texts.examples import Example, Found, leave_out

Told = TypeVar("Told")
PIECE_TEXTS, PIECE_CHARACTERS = 256, 1 << 20  # answered at once


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


class Formatter(Protocol[Told]):
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


def write_json(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


Wrong: TypeAlias = Callable[[Example], "Fault | None"]


def _usable(
    texts: Iterable[Found], accounting: Accounting, needs_pairs: bool, wrong: Wrong
) -> Iterator[tuple[Found, Example]]:
    for found in texts:
        if found.example and (fault := wrong(found.example)):
            found = replace(found, example=None, fault=fault.said, reason=fault.reason)
        if found.example and needs_pairs and not found.example.text_b:
            said = "no text_b, which the task's patterns ask for"
            found = replace(found, example=None, fault=said, reason="columns")
        if found.example is None:
            accounting.lines.append(found.line)
            leave_out(accounting, found)
        else:
            accounting.read += 1
            yield found, found.example


def pieces(
    texts: Iterable[Found],
    accounting: Accounting,
    needs_pairs: bool = False,
    wrong: Wrong = lambda example: None,
) -> Iterator[list[tuple[Found, Example]]]:
    """Texts that can be asked, as many at once as are read; the others are counted."""
    piece: list[tuple[Found, Example]] = []
    room = PIECE_CHARACTERS
    for found, example in _usable(texts, accounting, needs_pairs, wrong):
        piece.append((found, example))
        room -= len(example.text) + len(example.text_b)
        if len(piece) == PIECE_TEXTS or room <= 0:
            yield piece
            piece, room = [], PIECE_CHARACTERS
    if piece:
        yield piece
