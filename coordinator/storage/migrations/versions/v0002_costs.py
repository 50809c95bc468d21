"""A report says what the work cost in one table, and why it failed by a code."""

from typing import Any

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"

PHASES = (
    *("wait", "download", "load", "tokenize", "cache", "label", "train", "evaluate", "encode"),
    "upload",
)
# What reports of `schema_version` 1 began with, as far as it tells the code.
CODES = {
    "MemoryError": "memory",
    "TrainingError": "training",
    "DataError": "texts",
    "TaskError": "task",
    "BudgetError": "budget",
    "OSError": "disk",
    "WireError": "transfer",
}
NOT_MEASURED = (
    *("peak_phase", "peak_anon_bytes", "peak_file_bytes", "pss_bytes", "minor_faults"),
    *("major_faults", "disk_read_bytes", "tcp_up_bytes", "tcp_down_bytes"),
    *("tcp_retransmitted_bytes", "energy_j", "energy_source", "hottest_c", "is_throttled"),
    *("power_mode", "accelerator_peak_bytes"),
)


def upgrade() -> None:
    """Rewrite the reports; an error's own words stay in the copy of the old database alone."""
    reports = sql.table("reports", sql.column("work_id"), sql.column("report", sql.JSON))
    connection = op.get_bind()
    rows = connection.execute(sql.select(reports.c.work_id, reports.c.report)).all()
    for work_id, report in rows:
        changed = sql.update(reports).where(reports.c.work_id == work_id)
        connection.execute(changed.values(report=rewritten(report)))


def rewritten(report: dict[str, Any]) -> dict[str, Any]:
    """A report of `schema_version` 1 in the words of 2.

    What was counted then, bodies and headers, counts as payload; what nobody measured is null.
    """
    kept = dict(report)
    seconds, error = kept.pop("phases_s", {}), kept.pop("error", "")
    cost = dict.fromkeys(NOT_MEASURED) | {
        "phases_s": {phase: seconds[phase] for phase in PHASES if phase in seconds},
        "cpu_s": {},
        "peak_rss_bytes": kept.pop("peak_rss_bytes", 0) or None,
        "is_peak_of_work": True,
        "payload_up_bytes": kept.pop("bytes_up", 0),
        "payload_down_bytes": kept.pop("bytes_down", 0),
        "requests": kept.pop("requests", 0),
        "connections": 0,
    }
    code = CODES.get(error.partition(":")[0], "internal") if kept["outcome"] == "failed" else None
    return {"failure": code, "is_leaving": False} | kept | {"cost": cost}
