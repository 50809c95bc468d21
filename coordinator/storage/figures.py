"""What rounds cost and gave, from the devices' reports: one row per piece of work.

A row is the report's own fields (measured by the device) with round, kind and device beside them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.storage.store import Store

Row = dict[str, Any]


def rows(store: Store, run_id: str) -> list[Row]:
    """A run's rows by round, step and device.

    Late rows are answers that came after their step had closed: they cost what they say, but do
    not count.
    """
    return [_row(report) for report in store.reports(run_id)]


def _row(stored: Mapping[str, Any]) -> Row:
    names = ("round_index", "kind", "attempt", "device_id", "is_late")
    return {name: stored[name] for name in names} | dict(stored["report"])


def write_jsonl(table: Sequence[Row], path: Path) -> None:
    """Write one row a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, sort_keys=True) + "\n" for row in table]
    path.write_text("".join(lines), encoding="utf-8")


def weighted(table: Sequence[Row], kind: str, name: str) -> dict[int, float]:
    """A figure's mean by round, weighted by `num_examples`; rounds without it are left out.

    Args:
        table: Rows; those late, failed or without the figure do not count.
        kind: `train`, `label` or `evaluate`.
        name: For instance `accuracy`.
    """
    sums: dict[int, tuple[float, float]] = {}
    for row in table:
        counts = row["kind"] == kind and row["outcome"] == "done" and not row["is_late"]
        if counts and row[name] is not None and row["num_examples"] > 0:
            total, weight = sums.get(row["round_index"], (0.0, 0.0))
            examples = float(row["num_examples"])
            sums[row["round_index"]] = (total + examples * row[name], weight + examples)
    return {index: total / weight for index, (total, weight) in sorted(sums.items())}


def accuracies(table: Sequence[Row]) -> dict[int, float]:
    """Share of right labels by round, over all devices' texts; 0 is before any training."""
    return weighted(table, "evaluate", "accuracy")


def pseudo_labels(table: Sequence[Row]) -> dict[int, int]:
    """Pseudo-labels held after the labelling before a round, by those that labelled then."""
    held: dict[int, int] = {}
    for row in table:
        if row["kind"] == "label" and row["outcome"] == "done" and not row["is_late"]:
            held[row["round_index"]] = held.get(row["round_index"], 0) + row["pseudo_labels"]
    return held
