"""A cell of the models table: a base trained by one method, its cost, the smallest board it fits.

Cells are kept as records of kind `model` (`to_record`, `from_record`); tables, pages and files are
made from them alone. The board is estimated from the cell's peak, then proved by runs in a cgroup
with a whole board's 8, 4, 2 or 1 GiB, swap included, on two cores (a real board's system takes some
of that). Mapped weights can be dropped and read again, so a run may finish on a smaller board than
its resident peak suggests; what finishes, counts.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from smidgen.profiling.estimates import GIB as GIB
from smidgen.profiling.instruments.child import DONE
from smidgen.profiling.instruments.memory_cap import Group, memory_cap
from smidgen.profiling.records.record import (
    Conditions,
    Figure,
    Plain,
    Record,
    RecordError,
    last_part,
)

LABELLING = "labelling: "  # before how it ended, where training came to its end
BOARDS = (8 * GIB, 4 * GIB, 2 * GIB, GIB)  # memory of boards, largest first
METHODS = ("full", "peft", "nf4", "torch", "onnx")  # others' recipes first, then our engines
PEERS = METHODS[:3]
BUDGETS = ("8G", "2G", "512M", "256M")  # of our engines


@dataclass(frozen=True)
class Proof:
    """One run inside a hard memory group on two cores.

    Attributes:
        board_bytes: The group's limit, memory and swap together.
        is_done: Whether it came to its end.
        outcome: `done`, `killed by the memory cap`, or why it would not start.
        peak_bytes: The group's highest charge; None where the kernel does not tell.
        cap: What enforced the limit, in words.
        limit_bytes: The group's limit as the kernel had it; None where there was no group, or
            nobody wrote it down.
        is_broken: Whether it ended for another reason than its memory, or had no such limit: it
            says nothing about the board.
    """

    board_bytes: int
    is_done: bool
    outcome: str
    peak_bytes: int | None = None
    cap: str = ""
    limit_bytes: int | None = None
    is_broken: bool = False

    @property
    def is_hard(self) -> bool:
        """Whether the limit was the board's; only a group tells a charge."""
        if self.limit_bytes is None:
            return self.peak_bytes is not None
        return self.limit_bytes == self.board_bytes


@dataclass(frozen=True)
class Cell:
    """A base trained by one method; figures are measured, None is "not available here".

    Attributes:
        base: Shape or base, such as `roberta-base`.
        method: One of `METHODS`.
        budget: `--memory-budget` of our engines; empty for peers.
        isa: What the libraries were held to; empty for all that the processor has.
        batch: Texts in a step.
        tokens: Tokens of a text.
        adapter: Such as `lora:8@q,v`, or `all weights`.
        dtype: What it computed in, or None where it did not come so far.
        outcome: `done`, or in one line why not (a budget that is too small, killed, ...).
        parameters: Of the base.
        trained_parameters: Of them and of the adapter, what is trained.
        round_bytes: Payload that a device sends in a round: the trained parameters in float32.
        peak_rss_bytes: VmHWM over the training process's life, opening included.
        peak_anon_bytes: Its highest RssAnon.
        steps_s: Seconds of each step that counts.
        texts_per_s: Texts labelled a second, each repetition.
        label_peak_rss_bytes: VmHWM over the life of the process that labels.
        step_j: Joules of each step; None where there is no instrument.
        board_bytes: The smallest board it fits: proved (`is_proved`), or found from the peak alone;
            None: none, or not known.
        proofs: One run on that board (ends), one on the next smaller where there is one (killed or
            refused).
        plan: Our plan, or None.
        is_unstable: Whether steps spread by more than 15 % (interquartile range over median).
        needed_bytes: Predicted peak of the smallest plan where the budget is too small; estimated.
        asked: How it was measured: steps, warm-up, threads and patience; cells of other settings
            are measured again.
    """

    base: str
    method: str
    budget: str = ""
    isa: str = ""
    batch: int = 4
    tokens: int = 256
    adapter: str = "lora:8@q,v"
    dtype: str | None = None
    outcome: str = "done"
    parameters: int | None = None
    trained_parameters: int | None = None
    round_bytes: int | None = None
    peak_rss_bytes: int | None = None
    peak_anon_bytes: int | None = None
    steps_s: tuple[float, ...] = ()
    texts_per_s: tuple[float, ...] = ()
    label_peak_rss_bytes: int | None = None
    step_j: tuple[float, ...] | None = None
    board_bytes: int | None = None
    proofs: tuple[Proof, ...] = ()
    plan: dict[str, Any] | None = field(default=None, repr=False)
    is_unstable: bool = False
    needed_bytes: int | None = None
    asked: dict[str, Plain] = field(default_factory=dict, repr=False)

    @property
    def is_done(self) -> bool:
        return self.outcome == DONE

    @property
    def is_trained(self) -> bool:
        """Whether it trained to its end, whatever came of labelling."""
        return self.is_done or self.outcome.startswith(LABELLING)

    @property
    def is_final(self) -> bool:
        """Whether the same would come out again: it was measured, or refused for its budget."""
        is_whole = self.is_done and not any(proof.is_broken for proof in self.proofs)
        return is_whole or self.needed_bytes is not None

    @property
    def is_proved(self) -> bool:
        """Whether a run inside a hard group of its smallest board came to its end."""
        return any(
            proof.is_done and proof.is_hard and proof.board_bytes == self.board_bytes
            for proof in self.proofs
        )

    @property
    def fits_none(self) -> bool:
        """Whether runs on boards showed that it fits none of them."""
        is_known = bool(self.proofs) and not any(proof.is_broken for proof in self.proofs)
        return self.is_done and self.board_bytes is None and is_known

    @property
    def name(self) -> str:
        return f"{last_part(self.base)}, {self.way}"

    @property
    def way(self) -> str:
        return f"{self.method} {self.budget}".strip()

    @property
    def subject(self) -> dict[str, Plain]:
        """What tells this cell from others; threads only where a number was asked for."""
        names = ("base", "method", "budget", "isa", "batch", "tokens", "adapter")
        held: dict[str, Plain] = {} if self.threads is None else {"threads": self.threads}
        return {name: getattr(self, name) for name in names} | held

    @property
    def threads(self) -> int | None:
        """Threads of every process; None for what its libraries take."""
        found = self.asked.get("threads")
        return found if isinstance(found, int) else None


def to_record(cell: Cell, conditions: Conditions, session: str) -> Record:
    """A cell as it is kept."""
    figures: dict[str, tuple[Sequence[float | None], str]] = {
        "peak_rss_bytes": ([cell.peak_rss_bytes], "VmHWM"),
        "peak_anon_bytes": ([cell.peak_anon_bytes], "RssAnon, sampled"),
        "step_s": (cell.steps_s, "clock"),
        "texts_per_s": (cell.texts_per_s, "clock"),
        "label_peak_rss_bytes": ([cell.label_peak_rss_bytes], "VmHWM"),
        "step_j": (cell.step_j or (), "the machine's energy counter"),
    }
    return Record(
        kind="model",
        subject=cell.subject,
        figures={
            name: Figure(values, how, "higher" if name == "texts_per_s" else "lower")
            for name, (told, how) in figures.items()
            if (values := tuple(float(value) for value in told if value is not None))
        },
        conditions=conditions,
        outcome=cell.outcome,
        session=session,
        is_peer=cell.method in PEERS,
        details=asdict(cell),
    )


def from_record(record: Record) -> Cell:
    """The cell that a record was made of.

    Raises:
        RecordError: Its details are not a cell's.
    """
    try:
        return msgspec.convert(record.details, Cell)
    except msgspec.ValidationError as error:
        raise RecordError(f"{record.name}: not a cell of the models table: {error}") from error


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
    os.sched_setaffinity(0, sorted(before)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
