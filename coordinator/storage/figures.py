"""What rounds cost and gave, from the devices' reports: one row per piece of work.

A row is the report's own fields (measured by the device) with run, round, kind and device (its id
and its name) beside them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from coordinator.rounds.bounds import next_most_examples
from coordinator.rounds.scoring import Score
from coordinator.storage.store import Store
from edge_client.outputs import new_file
from edge_client.wire.figures import Row, by_round, counted, weighted


def rows(store: Store, run_id: str, since: int = 0) -> list[Row]:
    """A run's rows by round, step and device, from a round on; those late or failed too."""
    return [_row(report) for report in store.reports(run_id, since)]


def rows_of_round(store: Store, run_id: str, round_index: int) -> list[Row]:
    """The rows of one round."""
    return [_row(report) for report in store.reports(run_id, round_index, round_index)]


def _row(stored: Mapping[str, Any]) -> Row:
    names = ("run_id", "round_index", "kind", "attempt", "device_id", "device", "is_late")
    return {name: stored[name] for name in names} | dict(stored["report"])


def write_jsonl(table: Sequence[Row], path: Path) -> None:
    """Write rows as a command's `--out`, one line each; a cut leaves the old file or the new."""
    with new_file("--out", path) as file:
        file.writelines(json.dumps(row, sort_keys=True) + "\n" for row in table)


def means(table: Iterable[Row], kind: str, name: str) -> dict[int, float]:
    """A figure's mean by round, over the rows that count; rounds without it are left out.

    What one device says weighs no more than a few times what the median one's does.

    So are those whose sum overflowed: older coordinators let in a loss of any size.
    """
    by_index = by_round(counted(table, kind))
    found = {index: weighted(within_bounds(rows), name) for index, rows in by_index.items()}
    return {index: mean for index, mean in found.items() if mean is not None and isfinite(mean)}


def within_bounds(found: Sequence[Row]) -> list[Row]:
    """Rows of a round whose weights are bounded as those of updates and evaluations are."""
    most = next_most_examples([row["num_examples"] for row in found if row["num_examples"] > 0])
    return [row | {"num_examples": min(row["num_examples"], most)} for row in found]


def accuracies(table: Iterable[Row]) -> dict[int, float]:
    """Share of right labels by round, over all devices' texts; 0 is before any training."""
    return means(table, "evaluate", "accuracy")


def errors(scores: Mapping[int, Score]) -> dict[int, float | None]:
    """Standard error of the accuracy by round, where a cohort evaluated for the others.

    Rounds in which everybody was asked have none; None: one device answered, which tells none.
    """
    return {index: one.error for index, one in sorted(scores.items()) if one.error != 0.0}


def medians(scores: Mapping[int, Score]) -> dict[int, float | None]:
    """The median device's share of right texts by round."""
    return {index: one.median for index, one in sorted(scores.items())}


def pseudo_labels(table: Iterable[Row]) -> dict[int, int]:
    """Pseudo-labels held after the labelling before a round, by those that labelled then."""
    labelled = by_round(counted(table, "label"))
    return {index: sum(row["pseudo_labels"] for row in rows) for index, rows in labelled.items()}
