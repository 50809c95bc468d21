from dataclasses import replace

import pytest

from smidgen.profiling.models.cell import GIB, Cell, Proof, found_board, placed, prove


class Boards:
    """Runs that end from so many GiB on; remembers what was tried."""

    def __init__(self, least: int) -> None:
        self.least, self.tried = least, list[int]()

    def __call__(self, board_bytes: int) -> Proof:
        self.tried.append(board_bytes // GIB)
        is_done = board_bytes >= self.least * GIB
        return Proof(board_bytes, is_done, "done" if is_done else "killed by the memory cap")


@pytest.mark.parametrize(
    ("peak", "expected"), [(1, GIB), (GIB, GIB), (GIB + 1, 2 * GIB), (99 * GIB, None)]
)
def test_the_smallest_board_that_holds_a_peak(peak: int, expected: int | None) -> None:
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


@pytest.mark.parametrize("broken", [1, 2, 4])
def test_a_run_that_failed_for_another_reason_leaves_the_board_open(broken: int) -> None:
    boards = Boards(4)

    def attempt(board_bytes: int) -> Proof:
        proof = boards(board_bytes)
        return replace(proof, is_broken=board_bytes == broken * GIB)

    board, proofs = prove((broken if broken < 4 else 2) * GIB, attempt)
    assert board is None and proofs[-1].is_broken and proofs[-1].board_bytes == broken * GIB


def test_without_a_hard_group_the_peak_alone_finds_a_board() -> None:
    cell = Cell("bert-base", "onnx", "512M", peak_rss_bytes=3 * GIB)
    found = placed(cell, None)
    assert found.board_bytes == 4 * GIB and not found.proofs and not found.is_proved
    assert placed(replace(cell, peak_rss_bytes=9 * GIB), None).board_bytes is None
