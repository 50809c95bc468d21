"""What went wrong in a run's rounds, from the devices' reports."""

from collections.abc import Sequence
from typing import Any

from edge_client.wire.failures import SAID
from edge_client.wire.figures import Row, by_round

Trouble = dict[str, Any]
LATE = "its answer came after the step had closed"


def trouble_of(table: Sequence[Row], most: int) -> dict[int, list[Trouble]]:
    """Answers that failed or came too late, by round, the last `most` of each."""
    found = {}
    for index, told in by_round(table).items():
        bad = [row for row in told if row["outcome"] == "failed" or row["is_late"]]
        if bad:
            found[index] = [_trouble(row) for row in bad[-most:]]
    return found


def _trouble(row: Row) -> Trouble:
    names = ("device_id", "kind", "round_index", "attempt")
    said = SAID[row["failure"]] if row.get("failure") else LATE
    return {"key": row["work_id"], "said": said} | {name: row[name] for name in names}
