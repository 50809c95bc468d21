"""Rows of `rounds.jsonl`: a report's fields with run, round, kind and device, and which rows count.

The coordinator writes the rows and `smidgen profile rounds` reads them, by the same rules, so that
a late answer counts in no table. Only the coordinator bounds a device's weight
(`smidgen.coordinator.rounds.scoring`): the profile sums reports as they are, so where one claims
far more texts or a far greater loss than others, the two tables differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from smidgen.edge_client.tasks.counts import Entities

Row = dict[str, Any]
BY_KERNEL = "bytes of TCP, counted by the devices' kernels: headers and TLS are in them"
BY_PAYLOAD = "bodies alone: not every device's kernel counts what TCP moves"


def counted(rows: Iterable[Row], kind: str) -> list[Row]:
    """Rows of a kind that have a say in their round: done, and before its step was closed.

    Of a round that was evaluated, or labelled for, more than once those of the newest attempt in
    which somebody told of a text: the others may be of an adapter that its run went back from. A
    late or failed piece of work, and one of an older attempt, has cost what it says all the same.
    """
    found = [
        row
        for row in rows
        if row["kind"] == kind and row["outcome"] == "done" and not row.get("is_late")
    ]
    if kind not in ("evaluate", "label"):
        return found  # in asynchronous rounds work of an earlier attempt goes on
    newest: dict[tuple[Any, Any], int] = {}
    for row in found:
        if row["num_examples"] > 0:
            newest[_step(row)] = max(newest.get(_step(row), 0), row.get("attempt", 0))
    return [row for row in found if row.get("attempt", 0) >= newest.get(_step(row), 0)]


def _step(row: Row) -> tuple[Any, Any]:
    return row.get("run_id"), row["round_index"]


def by_round(rows: Iterable[Row]) -> dict[int, list[Row]]:
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


def entities_of(row: Row) -> Entities | None:
    """What a row tells of entities; None where it tells nothing, as most kinds of work do."""
    told = row.get("entities")
    return None if told is None else msgspec.convert(told, Entities)


@dataclass(frozen=True)
class Moved:
    """How rows' traffic is counted: alike for all of them, so that they may be compared.

    Attributes:
        is_by_kernel: Whether every row has its kernel's count; else bodies are counted.
    """

    is_by_kernel: bool

    @property
    def note(self) -> str:
        return BY_KERNEL if self.is_by_kernel else BY_PAYLOAD

    def bytes_of(self, row: Row, way: Literal["up", "down"]) -> int:
        instrument = "tcp" if self.is_by_kernel else "payload"
        return int(row["cost"][f"{instrument}_{way}_bytes"])


def traffic_of(rows: Iterable[Row]) -> Moved:
    """How the traffic of these rows can be counted."""
    names = ("tcp_up_bytes", "tcp_down_bytes")
    return Moved(all(row["cost"][name] is not None for row in rows for name in names))
