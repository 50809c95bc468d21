"""Two sets of records: what became better, what worse, and what is noise.

Records are of the same thing when kind and subject are equal. Their figures may be held against
each other if their conditions agree; if machine or libraries do not, only their ratios to a peer
that was measured in the same session, else nothing at all.

    found = compare(before, after, tolerance=0.05)
    any(change.verdict == "worse" for change in found.changes)
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np

from profiling.records.record import Conditions, Figure, Record

Verdict = Literal["better", "worse", "noise"]
CONFIDENT = 0.95  # from here on repetitions count as apart; three beside three just reach it
MOST_ORDERS = 20_000  # of repetitions; with more of them so many are drawn
PLACES = ("machine", "versions")  # where they differ, ratios to a peer still tell something
ACROSS = (*PLACES, "plan", "base_id", "seed", "isa")


@dataclass(frozen=True)
class Change:
    """One figure before and after.

    Attributes:
        record: What was measured, the later record.
        figure: Its name.
        before: Median; of a ratio, to the peer's median.
        after: The same, later.
        change: (after - before) / before.
        verdict: `noise` within the tolerance, or where repetitions are not apart.
        confidence: That the repetitions are apart, 0 to 1; None of a figure with one alone, which
            the tolerance decides.
        peer: Whom both are ratios to; empty where they are not.
    """

    record: Record
    figure: str
    before: float
    after: float
    change: float
    verdict: Verdict
    confidence: float | None
    peer: str = ""


@dataclass(frozen=True)
class Comparison:
    """What came of two sets of records.

    Attributes:
        changes: Of the figures that could be compared.
        refused: One line for each record that could not be, with the reason.
    """

    changes: tuple[Change, ...]
    refused: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        return any(change.verdict == "worse" for change in self.changes)


def compare(
    before: Sequence[Record],
    after: Sequence[Record],
    tolerance: float,
    across: Collection[str] = (),
) -> Comparison:
    """Compare the newest record of each thing that both sets hold.

    Args:
        before: The base line.
        after: What is held against it.
        tolerance: Relative change up to which nothing has changed, such as 0.05.
        across: Conditions that may differ all the same, of `ACROSS`.
    """
    old, new = _newest(before), _newest(after)
    changes: list[Change] = []
    refused = [f"{record.name}: not in both" for key, record in new.items() if key not in old]
    for key, now in new.items():
        if key not in old:
            continue
        then = old[key]
        apart = [name for name in differing(then.conditions, now.conditions) if name not in across]
        hard = [name for name in apart if name not in PLACES]
        if then.outcome != now.outcome or not now.figures:
            refused.append(f"{now.name}: {then.outcome} before, {now.outcome} after")
        elif hard:
            refused.append(f"{now.name}: another {' and '.join(hard)}")
        elif not apart:
            changes += _changes(now, then.figures, now.figures, tolerance, "")
        elif shared := _shared_peer(then, before, now, after):
            peer, peer_then, peer_now = shared
            figures = _ratios(then, peer_then), _ratios(now, peer_now)
            changes += _changes(now, *figures, tolerance, peer)
        else:
            refused.append(
                f"{now.name}: another {' and '.join(apart)}, and no peer was measured beside both"
            )
    return Comparison(tuple(changes), tuple(refused))


def differing(a: Conditions, b: Conditions) -> list[str]:
    """Names of the conditions that do not agree; load may differ."""
    return [name for name in ACROSS if getattr(a, name) != getattr(b, name)]


def _newest(records: Sequence[Record]) -> dict[str, Record]:
    return {record.key: record for record in records}


def _shared_peer(
    then: Record, before: Sequence[Record], now: Record, after: Sequence[Record]
) -> tuple[str, Record, Record] | None:
    """A peer that was measured beside both, with what it gave then and now."""
    old, new = _peers(then, before), _peers(now, after)
    return next(((name, old[name], new[name]) for name in new if name in old), None)


def _peers(ours: Record, records: Sequence[Record]) -> dict[str, Record]:
    """Peers of the same session on the same base, by what tells them from each other."""
    told = ("engine", "method")
    return {
        " ".join(str(peer.subject[name]) for name in told if name in peer.subject): peer
        for peer in records
        if peer.is_peer
        and peer.session == ours.session
        and peer.key != ours.key
        and peer.subject.get("base") == ours.subject.get("base")
    }


def _ratios(ours: Record, peer: Record) -> dict[str, Figure]:
    found = {}
    for name, figure in ours.figures.items():
        beside = peer.figures.get(name)
        if beside is not None and beside.median:
            values = tuple(value / beside.median for value in figure.values)
            found[name] = Figure(values, figure.instrument, figure.better, figure.source)
    return found


def _changes(
    record: Record,
    then: dict[str, Figure],
    now: dict[str, Figure],
    tolerance: float,
    peer: str,
) -> Iterator[Change]:
    for name, after in now.items():
        before = then.get(name)
        if before is None or not before.median or before.source != after.source:
            continue
        change = after.median / before.median - 1
        is_worse = (change > 0) == (after.better == "lower")
        confidence = confidence_apart(before.values, after.values)
        is_noise = abs(change) <= tolerance or (confidence is not None and confidence < CONFIDENT)
        verdict: Verdict = "noise" if is_noise else "worse" if is_worse else "better"
        yield Change(record, name, before.median, after.median, change, verdict, confidence, peer)


def confidence_apart(before: Sequence[float], after: Sequence[float]) -> float | None:
    """How sure it is that one set of repetitions is higher than the other, 0.5 to 1.

    One minus the one-sided p-value of a rank sum test (Mann and Whitney 1947), by counting orders.
    Swapping the sets changes nothing. None where one of them has a single value.
    """
    if min(len(before), len(after)) < 2:
        return None
    together = np.array([*before, *after])
    ranks = together.argsort(kind="stable").argsort() + 1.0
    for value in set(together.tolist()):  # equal values share their places
        ranks[together == value] = ranks[together == value].mean()
    count, size = len(before), len(together)
    if comb(size, count) <= MOST_ORDERS:
        sums = np.array([ranks[list(rows)].sum() for rows in combinations(range(size), count)])
    else:
        generator = np.random.Generator(np.random.PCG64(0))
        sums = np.array([generator.permutation(ranks)[:count].sum() for _ in range(MOST_ORDERS)])
    seen, middle = ranks[:count].sum(), count * (size + 1) / 2
    as_far = sums >= seen if seen >= middle else sums <= seen
    return max(0.5, 1.0 - float(as_far.mean()))
