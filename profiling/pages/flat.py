"""Cells as data for other programs: CSV with one line per cell, JSON with everything.

Bytes and seconds, never scaled. An empty field or a null is a figure that is not available here.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from profiling.estimates.published import AUG_FEDPROMPT, SETTING, aug_fedprompt
from profiling.estimates.rates import Rates
from profiling.models.cell import Cell
from profiling.pages.answers import bases, grid, setting, settings
from profiling.pages.words import middle
from profiling.records.record import Conditions

SCHEMA = 1
_PLAIN = (
    *("base", "method", "budget", "isa", "batch", "tokens", "threads", "adapter"),
    *("dtype", "outcome"),
    *("parameters", "trained_parameters", "round_bytes", "peak_rss_bytes", "peak_anon_bytes"),
)
_LISTS = ("steps_s", "texts_per_s", "step_j")


def as_csv(cells: Sequence[Cell]) -> str:
    """One line per cell, measured figures alone; of repetitions median, least, greatest, number."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(_flat(Cell("", ""))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_flat, cells))
    return file.getvalue()


def _flat(cell: Cell) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(cell, name) for name in _PLAIN}
    for name in _LISTS:
        values = getattr(cell, name) or ()
        row |= {
            f"{name}_median": middle(values),
            f"{name}_min": min(values, default=None),
            f"{name}_max": max(values, default=None),
            f"{name}_count": len(values),
        }
    proofs = [f"{one.board_bytes}:{one.outcome}" for one in cell.proofs]
    return row | {
        "label_peak_rss_bytes": cell.label_peak_rss_bytes,
        "board_bytes": cell.board_bytes,
        "proofs": "; ".join(proofs),
        "is_unstable": cell.is_unstable,
    }


def as_json(
    cells: Sequence[Cell], conditions: Sequence[Conditions], rates: Rates | None = None
) -> str:
    """Everything: cells as they were measured, the answers, what is published, the conditions."""
    answers = [
        {
            "isa": one.isa,
            "batch": one.batch,
            "tokens": one.tokens,
            "threads": one.threads,
            "base": answer.base,
            "board_bytes": answer.board_bytes,
            "why": answer.why,
            "method": answer.cell.method if answer.cell else None,
            "budget": answer.cell.budget if answer.cell else None,
            "step_s": middle(answer.cell.steps_s) if answer.cell else None,
        }
        for one in settings(cells)
        for row in grid([cell for cell in cells if setting(cell) == one])
        for answer in row
    ]
    known = aug_fedprompt()
    body = {
        "schema": SCHEMA,
        "measured": [asdict(cell) for cell in cells],
        "fits": answers,
        "published": {
            "source": AUG_FEDPROMPT,
            "setting": SETTING,
            "bases": {name: asdict(known[name]) for name in bases(cells) if name in known},
        },
        "rates": None if rates is None else asdict(rates),
        "conditions": list({json.dumps(asdict(one)): asdict(one) for one in conditions}.values()),
    }
    return json.dumps(body, indent=1) + "\n"
