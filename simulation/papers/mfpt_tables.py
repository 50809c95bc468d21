"""The two of Multilingual Federated Prompt Tuning's experiments that are counted, not run.

`mfpt traffic` recounts parameters and megabytes; `mfpt distance` sets each language's distance from
the pretraining mixture beside what federation gave it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from simulation.papers.published import MFPT_TRAFFIC_SOURCE, shown
from simulation.papers.scenario import Measured
from simulation.papers.traffic import TrafficRow, traffic_rows
from simulation.papers.typology import TypologyError, distance, table_vectors

# The embedded base's card: passages it was taught.
EMBEDDED_MIXTURE = {"en": 25_850.0, "es": 9_276.0, "fr": 9_334.0, "de": 3_512.0}


def parse_mixture(text: str) -> dict[str, float]:
    """Read `en=0.6,fr=0.4`.

    Raises:
        TypologyError: No such list.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name.strip(): float(share) for name, share in pairs}
    except ValueError as error:
        raise TypologyError(f"--pretraining {text!r}: en=0.6,fr=0.4 is expected") from error


def traffic_table() -> tuple[Table, list[dict[str, Any]]]:
    """Parameters and traffic as the paper counts them, recounted, and as smidgen sends them."""
    table = Table(title="XLM-R base, 10 labels; 5 clients x 10 rounds, both ways", box=SIMPLE_HEAD)
    for name in ("", "trained", "\\[paper]", "MB", "\\[paper]", "from"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    rows = traffic_rows()
    for row in rows:
        table.add_row(*_traffic_cells(row))
    notes = dict.fromkeys(f"{row.what}: {row.note}" for row in rows if row.published)
    table.caption = "\n".join([*notes, rf"\[paper] {MFPT_TRAFFIC_SOURCE}"])
    return table, [asdict(row) | {"run_bytes": row.run_bytes} for row in rows]


def _traffic_cells(row: TrafficRow) -> list[str]:
    return [
        row.what,
        f"{row.parameters:,}",
        shown(row.published.parameters) if row.published else "",
        f"{row.run_bytes / 1e6:,.1f}",
        shown(row.published.run_mb) if row.published else "",
        "files" if row.is_measured else "count",
    ]


def distance_table(
    found: Sequence[Measured], mixture: Mapping[str, float]
) -> tuple[Table, list[dict[str, Any]]]:
    """Languages by distance from the mixture, with what each cell gave them.

    Raises:
        TypologyError: A language without a vector.
    """
    shares = {item.cell.row: item.by_language() for item in found}
    languages = sorted(next(iter(shares.values())), key=lambda name: distance(name, mixture))
    table = Table(title="language distance -log cos(v, V_p), and accuracy in %")
    for name in ("language", "distance", *shares, "gain of federation"):
        table.add_column(name, justify="right")
    rows: list[dict[str, Any]] = []
    for language in languages:
        far = distance(language, mixture)
        values = [accuracy[language] for accuracy in shares.values()]
        gain = values[-1] - values[0]
        cells = [f"{100 * value:.1f}" for value in values]
        table.add_row(language, f"{far:.3f}", *cells, f"{100 * gain:+.1f}")
        rows.append({"language": language, "distance": far, "gain": gain})
    fars, gains = ([float(row[name]) for row in rows] for name in ("distance", "gain"))
    table.caption = table_vectors().source
    if len(rows) >= 8 and np.std(gains) > 0:  # of fewer a correlation says nothing
        slope = float(np.corrcoef(fars, gains)[0, 1])
        table.caption += f"; correlation of distance and gain {slope:+.2f}"
    return table, rows
