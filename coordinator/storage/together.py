"""Doing at once what several threads ask at the same time, such as one commit for all of them."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class _Asked(Generic[A, B]):
    what: A
    answers: list[B] = field(default_factory=list)  # one of them, once it is over
    error: Exception | None = None
    is_over: bool = False


class Together(Generic[A, B]):
    """Collects what threads ask while it is busy; whoever comes first then does it for all.

    Args:
        do: Does it for all that asked, in the order in which they did; an answer for each. If it
            raises, each of them hears so.
    """

    def __init__(self, do: Callable[[Sequence[A]], Sequence[B]]) -> None:
        self._do = do
        self._asked: deque[_Asked[A, B]] = deque()
        self._doing = threading.Lock()

    def __call__(self, what: A) -> B:
        """Have it done; what came of it."""
        mine = _Asked[A, B](what)
        self._asked.append(mine)
        with self._doing:
            if not mine.is_over:
                self._do_all()
        if mine.error is not None:
            raise mine.error
        return mine.answers[0]

    def __len__(self) -> int:
        """How many wait."""
        return len(self._asked)

    def _do_all(self) -> None:
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        try:
            for one, answer in zip(asked, self._do([one.what for one in asked]), strict=True):
                one.answers.append(answer)
        except Exception as error:
            for one in asked:
                one.error = error
        finally:
            for one in asked:
                one.is_over = True
