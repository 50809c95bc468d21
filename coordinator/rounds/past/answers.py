"""Answers of an open step, by work id: a mapping that never changes and grows at the cost of one.

All that grew from one another share what they hold; each knows how many of it are its own.
"""

from collections.abc import Iterator, Mapping, ValuesView

from coordinator.rounds.events import Answered


class _Values(ValuesView[Answered]):
    """In the order in which they came, without a look-up each."""

    def __init__(self, answers: "Answers") -> None:
        super().__init__(answers)
        self._answers = answers

    def __iter__(self) -> Iterator[Answered]:
        return iter(self._answers.in_order())


class Answers(Mapping[str, Answered]):
    """Answers by work id, in the order in which they came; equal to a dict of the same.

    Reading is free for every thread. Two threads must not grow the same one at once.
    """

    __slots__ = ("_places", "_shared", "_size")

    def __init__(self, known: Mapping[str, Answered] | None = None) -> None:
        self._shared = list((known or {}).values())
        self._places = {work_id: place for place, work_id in enumerate(known or {})}
        self._size = len(self._shared)

    def plus(self, answer: Answered) -> "Answers":
        """With an answer to work that has none yet; a fork of an older one is copied first."""
        if answer.work_id in self:
            raise ValueError(f"work {answer.work_id} is answered already")
        here = self if self._size == len(self._shared) else Answers(dict(self))
        grown = Answers.__new__(Answers)
        grown._shared, grown._places, grown._size = here._shared, here._places, here._size + 1
        # The place last: it is nobody's until `grown` is.
        grown._shared.append(answer)
        grown._places[answer.work_id] = here._size
        return grown

    def in_order(self) -> list[Answered]:
        """The answers as they came."""
        return self._shared[: self._size]

    def __getitem__(self, work_id: str) -> Answered:
        place = self._places[work_id]
        if place >= self._size:  # of one that grew from this one
            raise KeyError(work_id)
        return self._shared[place]

    def __iter__(self) -> Iterator[str]:
        return (answer.work_id for answer in self.in_order())

    def __len__(self) -> int:
        return self._size

    def values(self) -> ValuesView[Answered]:
        return _Values(self)

    def __repr__(self) -> str:
        return f"Answers({dict(self)!r})"
