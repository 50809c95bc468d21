"""A thread that looks at something else again and again until a block ends."""

import threading
from abc import ABC, abstractmethod
from typing import TypeVar

BackgroundT = TypeVar("BackgroundT", bound="Background")


class Background(ABC):
    """A daemon thread that runs `_watch` from the beginning of a block to its end.

    Args:
        name: The thread's.
    """

    def __init__(self, name: str) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def __enter__(self: BackgroundT) -> BackgroundT:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @abstractmethod
    def _watch(self) -> None:
        """Look until `_is_over` is set."""
