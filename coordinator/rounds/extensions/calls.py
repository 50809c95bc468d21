"""How somebody else's code is called: plainly, or by whoever serves, who does not wait for ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Call = Callable[[str, Callable[[], Any]], Any]
"""Called with what the code is called, where it fails, and the work; gives what the work gives."""


@contextmanager
def calling_by(call: Call) -> Iterator[None]:
    """A block in which `called` is done by this."""
    token = _CALL.set(call)
    try:
        yield
    finally:
        _CALL.reset(token)


def called(name: str, work: Callable[[], T]) -> T:
    """What the work gives or raises, or what the block's way to call raises instead.

    Args:
        name: What the code is called where it fails.
        work: The call.
    """
    found: T = _CALL.get()(name, work)
    return found


def _plainly(_name: str, work: Callable[[], T]) -> T:
    return work()


_CALL: ContextVar[Call] = ContextVar("call", default=_plainly)
