"""Delta debugging: the fewest faults with which a story still fails (Zeller, Hildebrandt 2002)."""

from collections.abc import Callable, Sequence

from tests.stories.faults import Fault


def shrunk(faults: Sequence[Fault], fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """A minimal part of the faults: without any one of them the story no longer fails.

    Args:
        faults: All of a story that fails.
        fails: Tells the story with some of them.
    """
    left, parts = list(faults), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        pieces = [left[start : start + size] for start in range(0, len(left), size)]
        rests = [[one for one in left if one not in piece] for piece in pieces]
        smaller = next((some for some in (*pieces, *rests) if some != left and fails(some)), None)
        if smaller is not None:
            left, parts = smaller, max(2, min(parts - 1, len(smaller)))
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return left if len(left) != 1 or not fails([]) else []
