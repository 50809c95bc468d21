"""Compares two sets of records: what became better or worse, and what is noise.

Records match if kind and subject are equal. If their conditions agree, figures are compared; if
machine or libraries differ, only their ratios to a peer measured in the same session; else nothing.
What succeeded before and not after is worse. Peers' own records and figures that were not measured
do not count.

    found = compare(before, after, tolerance=0.05)
    any(change.verdict == "worse" for change in found.changes)
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from statistics import median
from typing import Literal

import numpy as np

from smidgen.profiling.records.record import Figure, Plain, Record

CONFIDENT = (
    0.95  # from here on they count as apart: four beside four can be, three beside three not
)
MOST_ORDERS = 20_000  # of repetitions; with more of them so many are drawn


def confidence_apart(before: Sequence[float], after: Sequence[float]) -> float | None:
    """How sure it is that one set of repetitions is higher than the other, 0 to 1.

    One minus the two-sided p-value (twice the one-sided, since either way counts), by counting
    orders. Swapping the sets changes nothing. None where one of them has a single value.
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
    return max(0.0, 1.0 - 2.0 * float(as_far.mean()))


def confidence_beside(
    before: Sequence[float],
    peer_before: Sequence[float],
    after: Sequence[float],
    peer_after: Sequence[float],
) -> float | None:
    """How sure it is that ours changed relative to a peer, 0 to 1.

    Ours are divided by that repetition of the peer, then and now, which brings both nearest
    together; 0 where their order turns by it. None where one of the four has a single value.
    """
    if min(map(len, (before, peer_before, after, peer_after))) < 2:
        return None
    is_up = median(after) / median(peer_after) > median(before) / median(peer_before)
    then, now = (min, max) if is_up else (max, min)
    old = [value / then(peer_before) for value in before]
    new = [value / now(peer_after) for value in after]
    return confidence_apart(old, new) if (median(new) > median(old)) == is_up else 0.0


Verdict = Literal["better", "worse", "noise", "peer", "estimated", "published"]
PLACES = ("machine", "versions")  # where they differ, ratios to a peer still tell something
ACROSS = (*PLACES, "plan", "base_id", "seed", "isa")
WHO = ("who", "engine", "method")  # of a subject, what tells a peer from ours
OWN = (*WHO, "budget", "cap_bytes", "adapter")  # what it may have otherwise than ours


@dataclass(frozen=True)
class Change:
    """One figure before and after.

    Attributes:
        record: What was measured, the later record.
        figure: Its name; `outcome` of what came to its end in one of them alone.
        before: Median; of a ratio, to the peer's median; of an outcome, its words.
        after: The later figure.
        change: (after - before) / |before|; None of an outcome, and from 0.
        verdict: `noise` within the tolerance, or where repetitions are not apart; `peer` of a
            peer's record, `estimated` or `published` of such a figure, however it changed.
        confidence: That the repetitions are apart, 0 to 1; None where somebody, ours or the peer,
            has one alone, so that the tolerance decides.
        peer: Whom both are ratios to; empty where they are not.
    """

    record: Record
    figure: str
    before: float | str
    after: float | str
    change: float | None
    verdict: Verdict
    confidence: float | None = None
    peer: str = ""


@dataclass(frozen=True)
class Comparison:
    """What came of two sets of records.

    Attributes:
        changes: Of the figures that could be compared.
        refused: One line for each record or figure that could not be, with the reason.
    """

    changes: tuple[Change, ...]
    refused: tuple[str, ...]

    @property
    def is_worse(self) -> bool:
        return any(change.verdict == "worse" for change in self.changes)


Peer = tuple[Record, Record]  # somebody who was measured beside ours, then and now


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
    found: list[Change | str] = []
    for key, now in new.items():
        if key not in old:
            continue
        then = old[key]
        a, b = then.conditions, now.conditions
        differing = [name for name in ACROSS if getattr(a, name) != getattr(b, name)]
        apart = [name for name in differing if name not in across]
        peer = _shared_peer(then, before, now, after)
        found += (
            _changes(then, now, apart, peer, tolerance)
            if then.is_done and now.is_done
            else _outcomes(then, now, apart)
        )
    found += [f"only in BEFORE: {_alone(one, after)}" for key, one in old.items() if key not in new]
    found += [f"only in AFTER: {_alone(one, before)}" for key, one in new.items() if key not in old]
    changes = tuple(one for one in found if isinstance(one, Change))
    return Comparison(changes, tuple(one for one in found if isinstance(one, str)))


def _alone(record: Record, others: Sequence[Record]) -> str:
    """A record, and in what it differs from the one that is most like it."""
    ours = record.subject
    theirs = [one.subject for one in others if one.kind == record.kind]
    found = [[name for name in ours | one if ours.get(name) != one.get(name)] for one in theirs]
    fewest: list[str] = min(found, key=len, default=[])
    return f"{record.name} (differs in {', '.join(fewest)})" if fewest else record.name


def _newest(records: Sequence[Record]) -> dict[str, Record]:
    return {record.key: record for record in records}


def _outcomes(then: Record, now: Record, apart: Sequence[str]) -> Iterator[Change | str]:
    """Of a thing that did not come to its end in both; what has no end tells no plan."""
    others = [name for name in apart if name != "plan"]
    if others or then.is_done == now.is_done:
        where = f", another {' and '.join(others)}" if others else ""
        yield f"{now.name}: {then.outcome} before, {now.outcome} after{where}"
        return
    verdict: Verdict = "peer" if now.is_peer else "better" if now.is_done else "worse"
    yield Change(now, "outcome", then.outcome, now.outcome, None, verdict)


def _changes(
    then: Record, now: Record, apart: Sequence[str], peer: Peer | None, tolerance: float
) -> Iterator[Change | str]:
    """Figure by figure, or why not."""
    others = " and ".join([name for name in apart if name not in PLACES])
    if others:
        yield f"{now.name}: another {others}"
    elif apart and (peer is None or now.is_peer):
        why = "it is a peer itself" if now.is_peer else "no peer was measured beside both"
        yield f"{now.name}: another {' and '.join(apart)}, and {why}"
    else:
        for name in now.figures | then.figures:
            found = _change(then, now, name, peer if apart else None, tolerance)
            yield f"{now.name}, {name}: {found}" if isinstance(found, str) else found


def _change(
    then: Record, now: Record, name: str, peer: Peer | None, tolerance: float
) -> Change | str:
    before, after = then.figures.get(name), now.figures.get(name)
    if before is None or after is None:
        return f"only in {'AFTER' if before is None else 'BEFORE'}"
    if (before.source, before.instrument) != (after.source, after.instrument):
        return f"{before.source} by {before.instrument}, then {after.source} by {after.instrument}"
    old, new = before.median, after.median
    if peer is None:
        confidence = confidence_apart(before.values, after.values)
    else:
        old_peer, new_peer = (one.figures.get(name) for one in peer)
        if not (old_peer and new_peer and min(*old_peer.values, *new_peer.values) > 0):
            return f"0 or not measured of {_who(peer)}"
        old, new = old / old_peer.median, new / new_peer.median
        confidence = confidence_beside(
            before.values, old_peer.values, after.values, new_peer.values
        )
    is_level = abs(new - old) <= max(tolerance * abs(old), after.level if peer is None else 0.0)
    verdict = _verdict(now, after, new - old, is_level, confidence)
    change = (new - old) / abs(old) if old else None if new else 0.0
    return Change(now, name, old, new, change, verdict, confidence, _who(peer) if peer else "")


def _verdict(
    record: Record, figure: Figure, grown: float, is_level: bool, confidence: float | None
) -> Verdict:
    if record.is_peer:
        return "peer"
    if figure.source != "measured":
        return figure.source
    if is_level or (confidence is not None and confidence < CONFIDENT):
        return "noise"
    return "worse" if (grown > 0) == (figure.better == "lower") else "better"


def _shared_peer(
    then: Record, before: Sequence[Record], now: Record, after: Sequence[Record]
) -> Peer | None:
    """A peer that was measured beside both, with what it gave then and now."""
    old, new = _peers(then, before), _peers(now, after)
    return next(((old[key], peer) for key, peer in new.items() if key in old), None)


def _who(peer: Peer) -> str:
    subject = peer[1].subject
    return " ".join(str(subject[one]) for one in WHO if one in subject)


def _peers(ours: Record, records: Sequence[Record]) -> dict[str, Record]:
    """Peers that did the same in the same session and came to their end."""
    return {
        peer.key: peer
        for peer in records
        if peer.is_peer
        and peer.is_done
        and (peer.kind, peer.session) == (ours.kind, ours.session)
        and _task(peer) == _task(ours)
    }


def _task(record: Record) -> dict[str, Plain]:
    return {name: value for name, value in record.subject.items() if name not in OWN}
