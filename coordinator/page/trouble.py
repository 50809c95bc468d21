"""What went wrong in a round, from the devices' reports."""

from collections.abc import Sequence
from typing import Any

from edge_client.wire.figures import Row
from edge_client.wire.reported.failures import SAID

Trouble = dict[str, Any]
MOST = 30
LATE = "its answer came after the step had closed"


def trouble_of(table: Sequence[Row]) -> list[Trouble]:
    """A round's answers that failed or came too late; of very many, the last."""
    bad = [row for row in table if row["outcome"] == "failed" or row["is_late"]]
    return [_trouble(row) for row in bad[-MOST:]]


def _trouble(row: Row) -> Trouble:
    names = ("device_id", "kind", "round_index", "attempt")
    said = SAID[row["failure"]] if row.get("failure") else LATE
    return {"key": row["work_id"], "said": said} | {name: row[name] for name in names}
