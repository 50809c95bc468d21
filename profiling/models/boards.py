"""The smallest board that a cell fits: found from its peak, then proved by runs in hard groups.

A board is a memory group of its whole 8, 4, 2 or 1 GiB, swap included, on two cores. (A real one's
system takes some of that.) A run there ends or is killed. Mapped weights can be dropped and read
again, so a run may end on a smaller board than its resident peak says: what ends, counts.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from profiling.instruments.memory_cap import Group, memory_cap
from profiling.models.cell import BOARDS, Cell, Proof

CORES = 2
Try = Callable[[int], Proof]


def found_board(peak_bytes: int) -> int | None:
    return min((board for board in BOARDS if peak_bytes <= board), default=None)


def placed(cell: Cell, attempt: Try | None) -> Cell:
    """A cell with its smallest board: proved, or without runs what its peak alone says.

    Args:
        cell: Measured to its end.
        attempt: Runs on a board of so many bytes; None where no hard group can be had.
    """
    peak = cell.peak_rss_bytes
    if attempt is None:
        return replace(cell, board_bytes=None if peak is None else found_board(peak))
    board, proofs = prove(peak or 0, attempt)
    return replace(cell, board_bytes=board, proofs=proofs)


def prove(peak_bytes: int, attempt: Try) -> tuple[int | None, tuple[Proof, ...]]:
    """Run on the board that was found, climb until a run ends, then go down until one does not.

    A broken run stops it: what else happens says nothing about memory.

    Args:
        peak_bytes: The peak without a limit.
        attempt: Runs on a board of so many bytes.

    Returns:
        The smallest board on which a run ended; None where none did, or where a broken run left it
        open; and all that was tried, in order.
    """
    place = BOARDS.index(found_board(peak_bytes) or BOARDS[0])
    tried = list(_until(True, attempt, reversed(BOARDS[: place + 1])))
    if len(tried) == 1 and tried[0].is_done:
        tried += _until(False, attempt, BOARDS[place + 1 :])
    if any(proof.is_broken for proof in tried):
        return None, tuple(tried)
    fits = min((proof.board_bytes for proof in tried if proof.is_done), default=None)
    return fits, tuple(tried)


def _until(is_done: bool, attempt: Try, boards: Iterable[int]) -> Iterator[Proof]:
    """Runs on boards, one after the other, up to the first that ends or does not, or breaks."""
    for board in boards:
        proof = attempt(board)
        yield proof
        if proof.is_broken or proof.is_done == is_done:
            return


def can_prove() -> bool:
    with memory_cap(BOARDS[-1]) as cap:
        return isinstance(cap, Group)


@contextmanager
def few_cores() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
