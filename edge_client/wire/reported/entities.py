"""How many entities of tagged texts were found: counts that add up over devices, and their F1.

    scores_of(entities).strict
    pooled([(mine, 1.0), (yours, 0.5)]).by_type  # yours count half

An entity is some words in a row and a type. Found is what the tags told say; right it is
`strict`: its words and its type are those of an entity that is there; `typed`: it shares a word
with one of its type; `partial`: its words are one's, whatever its type, which counts two halves, or
it shares some with one, which counts one half. Of `typed` and `partial` an entity that is there
counts once (Segura-Bedmar et al. 2013, SemEval task 9).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edge_client.errors import demand

MOST_ENTITIES = 2**53


@dataclass(frozen=True)
class Entities:
    """Counts over texts; those by type are in the order of the task's labels.

    Attributes:
        there: Entities that the texts hold, by type.
        found: Entities that were told, by type.
        strict: Of those found, right in words and type, by type.
        typed: Right in type, with a word in common; all types together.
        partial_halves: Halves for words alone, see above; all types together.
    """

    there: tuple[int, ...]
    found: tuple[int, ...]
    strict: tuple[int, ...]
    typed: int = 0
    partial_halves: int = 0

    def __post_init__(self) -> None:
        counts = (*self.there, *self.found, *self.strict, self.typed, self.partial_halves)
        is_sane = all(0 <= count < MOST_ENTITIES for count in counts)
        demand(is_sane, "entities: counts of 0 to 2^53")
        types = {len(self.there), len(self.found), len(self.strict)}
        demand(len(types) == 1, "entities: one count per type")
        pairs = zip(self.there, self.found, self.strict, strict=True)
        is_part = all(right <= min(there, found) for there, found, right in pairs)
        demand(is_part, "entities: strict: no more than there are, and than were found")
        most = min(sum(self.there), sum(self.found))
        demand(self.typed <= most, "entities: typed: no more than there are, and than were found")
        demand(self.partial_halves <= 2 * most, "entities: partial_halves: two each at most")


@dataclass(frozen=True)
class EntityScores:
    """F1 of entities, 0 to 1; None where none is there and none was found.

    Attributes:
        strict: Right words and right type, all types together (micro).
        typed: Right type and a word in common.
        partial: Right words, whatever the type; half of it for some of them.
        macro: Plain mean of the types' strict F1, of types that are there.
        weighted: Their mean weighted by how many are there.
        by_type: Strict F1 of each type, in the task's order.
    """

    strict: float | None
    typed: float | None
    partial: float | None
    macro: float | None
    weighted: float | None
    by_type: tuple[float | None, ...]


def scores_of(entities: Entities) -> EntityScores:
    """F1 = 2 right / (there + found), of each way to be right."""
    return pooled([(entities, 1.0)])


def pooled(told: Iterable[tuple[Entities, float]]) -> EntityScores:
    """The same over several counts, of as many types each, that weigh more or less.

    The laws: their order does not matter; where all weigh the same it is the F1 of their sum; one
    alone gives its own F1 whatever it weighs, to the last digits.

    Args:
        told: Counts and what each of them is multiplied by, 0 or more; one at least.
    """
    known = list(told)
    there, found, strict = (
        _summed([(getattr(one, name), weight) for one, weight in known])
        for name in ("there", "found", "strict")
    )
    typed, halves = _summed([((one.typed, one.partial_halves), weight) for one, weight in known])
    whole = math.fsum(there), math.fsum(found)
    by_type = tuple(_f1(*counts) for counts in zip(strict, there, found, strict=True))
    present = [(f1 or 0.0, count) for f1, count in zip(by_type, there, strict=True) if count]
    return EntityScores(
        strict=_f1(math.fsum(strict), *whole),
        typed=_f1(typed, *whole),
        partial=_f1(halves / 2, *whole),
        macro=math.fsum(f1 for f1, _ in present) / len(present) if present else None,
        weighted=math.fsum(f1 * count for f1, count in present) / whole[0] if present else None,
        by_type=by_type,
    )


def _summed(rows: Sequence[tuple[Sequence[int], float]]) -> list[float]:
    """Each column's weighted sum; the exact one, so that no order shows in it."""
    columns = zip(*(counts for counts, _ in rows), strict=True)
    weights = [weight for _, weight in rows]
    return [
        math.fsum(count * weight for count, weight in zip(column, weights, strict=True))
        for column in columns
    ]


def _f1(right: float, there: float, found: float) -> float | None:
    return 2 * right / (there + found) if there + found else None
