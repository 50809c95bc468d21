import pytest

from profiling.models.boards import found_board, prove
from profiling.models.cell import GIB, Proof


class Boards:
    """Runs that end from so many GiB on; remembers what was tried."""

    def __init__(self, least: int) -> None:
        self.least, self.tried = least, list[int]()

    def __call__(self, board_bytes: int) -> Proof:
        self.tried.append(board_bytes // GIB)
        is_done = board_bytes >= self.least * GIB
        return Proof(board_bytes, is_done, "done" if is_done else "killed by the memory cap")


@pytest.mark.parametrize(
    ("peak", "expected"), [(1, GIB), (GIB, GIB), (GIB + 1, 2 * GIB), (99 * GIB, 8 * GIB)]
)
def test_the_smallest_board_that_holds_a_peak(peak: int, expected: int) -> None:
    assert found_board(peak) == expected


@pytest.mark.parametrize(
    ("found", "least", "tried", "fits"),
    [
        (2, 2, [2, 1], 2),  # as found, and proved
        (2, 1, [2, 1], 1),  # mapped weights were dropped: it fits a smaller one
        (8, 1, [8, 4, 2, 1], 1),
        (1, 1, [1], 1),  # no smaller board
        (1, 4, [1, 2, 4], 4),  # killed where it was found: climb
        (4, 9, [4, 8], None),
    ],
)
def test_what_ends_counts(found: int, least: int, tried: list[int], fits: int | None) -> None:
    attempt = Boards(least)
    board, proofs = prove(found * GIB, attempt)
    assert attempt.tried == tried and len(proofs) == len(tried)
    assert board == (None if fits is None else fits * GIB)
