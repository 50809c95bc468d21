"""Waterfall of one round: each device's phases, and which devices the others waited for.

A round is a few steps of the coordinator's: label, train, evaluate. In each, every device asked
does one piece of work. Rows of `rounds.jsonl` share no clock, so devices are aligned at the moment
each was given its work; the waiting before lies to the left.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.figures import Row, by_round
from smidgen.profiling.rounds.costs import KINDS, PHASES, WAIT, FiguresError


@dataclass(frozen=True)
class PhaseSpan:
    """One piece of work of one device, as the device measured it.

    Attributes:
        device_id: Who did it; its name where the row says it.
        outcome: `done` or `failed`.
        failure: Code of why it failed, or None.
        is_late: Whether the step was closed before the answer came.
        wait_s: Seconds from the end of its last work until it was given this.
        phases_s: Seconds by phase after that, in the order of `PHASES`; one that came several times
            is one figure.
        cpu_s: Processor seconds of these phases; more than their seconds where threads share work.
        peak_rss_bytes: Highest resident memory.
        peak_phase: The phase in which it was reached; None: it was there before this work began.
        is_peak_of_work: Whether the peak is that of this work; else of the process's life so far.
    """

    device_id: str
    outcome: str
    failure: str | None
    is_late: bool
    wait_s: float
    phases_s: dict[str, float]
    cpu_s: float
    peak_rss_bytes: int
    peak_phase: str | None
    is_peak_of_work: bool

    @property
    def work_s(self) -> float:
        return sum(self.phases_s.values())

    @property
    def mark(self) -> str:
        """Why nothing came of it, in a word or two; empty where something did."""
        if self.outcome != "done":
            return f"failed: {self.failure}" if self.failure else "failed"
        return "late" if self.is_late else ""


@dataclass(frozen=True)
class Straggler:
    """The device that took longest in a step, of those that did the work.

    Attributes:
        device_id: Which.
        work_s: How long it took.
        behind_s: How much longer than the next: what the step would gain without it.
        times_median: How many times the median device's time; None where that took no time.
        phase: The phase that took most beyond the median device's.
        phase_behind_s: By how much.
    """

    device_id: str
    work_s: float
    behind_s: float
    times_median: float | None
    phase: str
    phase_behind_s: float


@dataclass(frozen=True)
class Step:
    """One step of a round, and what each device did in it, the slowest first.

    Attributes:
        kind: `label`, `train` or `evaluate`.
        round_index: 1-based; 0 is the evaluation before any training.
        attempt: 1, or more where nobody could do it at first.
        pieces: At least one.
    """

    kind: str
    round_index: int
    attempt: int
    pieces: tuple[PhaseSpan, ...]

    @property
    def title(self) -> str:
        before = "before round" if self.kind == "label" else "round"
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"{self.kind}, {before} {self.round_index}{again}"

    @property
    def peak(self) -> PhaseSpan:
        return max(self.pieces, key=lambda piece: piece.peak_rss_bytes)

    def straggler(self) -> Straggler | None:
        """Whom the others waited for; None where fewer than two did the work.

        One whose answer came too late is among them: the step waited for it until its deadline.
        """
        done = [piece for piece in self.pieces if piece.outcome == "done"]
        if len(done) < 2:
            return None
        slowest, after = done[:2]
        usual_s = median(piece.work_s for piece in done)
        behind = {
            name: spent - median(piece.phases_s.get(name, 0.0) for piece in done)
            for name, spent in slowest.phases_s.items()
        }
        phase = max(behind, key=lambda name: behind[name], default=WAIT)
        return Straggler(
            device_id=slowest.device_id,
            work_s=slowest.work_s,
            behind_s=slowest.work_s - after.work_s,
            times_median=slowest.work_s / usual_s if usual_s else None,
            phase=phase,
            phase_behind_s=behind.get(phase, 0.0),
        )


def steps_of_round(figures: Sequence[Row], round_index: int) -> list[Step]:
    """A round's steps in their order.

    Raises:
        FiguresError: There is no such round; names those that there are.
    """
    rounds = by_round(figures)
    demand(
        round_index in rounds,
        f"--round {round_index}: no device has answered in that round; the file has "
        f"{_in_short(list(rounds))}",
        FiguresError,
    )
    return list(_steps(rounds[round_index]))


def _in_short(rounds: Sequence[int]) -> str:
    is_whole = rounds[-1] - rounds[0] == len(rounds) - 1
    if len(rounds) > 1 and is_whole:
        return f"rounds {rounds[0]} to {rounds[-1]}"
    return f"round {', '.join(map(str, rounds))}"


def _steps(rows: Iterable[Row]) -> Iterator[Step]:
    found: dict[tuple[int, str, int], list[Row]] = {}
    for row in rows:
        kind = row["kind"]
        place = KINDS.index(kind) if kind in KINDS else len(KINDS)
        found.setdefault((place, kind, row.get("attempt", 1)), []).append(row)
    for (_, kind, attempt), mine in sorted(found.items(), key=lambda item: item[0]):
        pieces = sorted(map(_piece, mine), key=lambda piece: (-piece.work_s, piece.device_id))
        yield Step(kind, mine[0]["round_index"], attempt, tuple(pieces))


def _piece(row: Row) -> PhaseSpan:
    cost = row["cost"]
    spent = {name: cost["phases_s"][name] for name in PHASES if name in cost["phases_s"]}
    return PhaseSpan(
        device_id=str(row.get("device", row["device_id"])),
        outcome=row["outcome"],
        failure=row.get("failure"),
        is_late=bool(row.get("is_late")),
        wait_s=spent.pop(WAIT, 0.0),
        phases_s=spent,
        cpu_s=sum(cost["cpu_s"].get(name, 0.0) for name in spent),
        peak_rss_bytes=cost["peak_rss_bytes"] or 0,
        peak_phase=cost["peak_phase"],
        is_peak_of_work=cost["is_peak_of_work"],
    )
