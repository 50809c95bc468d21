"""What counts in a row of `rounds.jsonl`: a report, with round, kind and device beside its fields.

The coordinator writes the rows, `smidgen profile rounds` reads them; both sum them up by these
rules, so that an answer that came too late counts alike in every table.
"""

from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def counted(rows: Iterable[Row], kind: str) -> list[Row]:
    """Rows of a kind that have a say in their round: done, and before its step was closed.

    A late or failed piece of work has cost what it says all the same.
    """
    return [
        row
        for row in rows
        if row["kind"] == kind and row["outcome"] == "done" and not row.get("is_late")
    ]


def by_round(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows of each round, in order of rounds."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(int(row["round_index"]), []).append(row)
    return dict(sorted(found.items()))


def weighted(rows: Sequence[Row], name: str) -> float | None:
    """A figure's mean over clients, weighted by `num_examples`; None where no row has it.

    Cutting a client's row into two with the same figure and the same examples in all changes
    nothing; nor does a row without examples.

    Args:
        rows: Those that count, of one round.
        name: Such as `accuracy`.
    """
    told = [(row["num_examples"], row[name]) for row in rows if row.get(name) is not None]
    told = [(weight, value) for weight, value in told if weight > 0]
    total = sum(weight for weight, _ in told)
    return sum(weight * value for weight, value in told) / total if total else None
