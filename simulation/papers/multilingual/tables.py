"""Tables of Multilingual Federated Prompt Tuning that are counted, or made of what was run.

`mfpt traffic` recounts parameters and megabytes; `mfpt distance` sets each language's distance from
the pretraining mixture beside what federation gave it; `mfpt stopping` says when training ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from edge_client.tables import Column, Table
from simulation.experiments.result import Row
from simulation.papers.multilingual.traffic import TrafficRow, traffic_rows
from simulation.papers.multilingual.typology import TypologyError, distance, table_vectors
from simulation.papers.published.mfpt import TRAFFIC
from simulation.papers.scenario import SUMMARY, Measured

# The embedded base's card: passages it was taught.
EMBEDDED_MIXTURE = {"en": 25_850.0, "es": 9_276.0, "fr": 9_334.0, "de": 3_512.0}
WHEN = ("ended", "kept")


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
    rows = traffic_rows()
    notes = dict.fromkeys(f"{row.what}: {row.note}" for row in rows if row.printed)
    table = Table(
        [
            Column("what is sent", "word"),
            *(Column(name) for name in ("trained", "[paper]", "MB", "[paper] MB")),
            Column("from", "word"),
        ],
        [_traffic_cells(row) for row in rows],
        "XLM-R base, 10 labels; 5 clients x 10 rounds; ours: both ways",
        [
            "trained: parameters; MB: ours of 1,000,000 bytes, the paper's are not said (its 108 "
            "GB are its 110,592 MB); from: files that smidgen wrote, or a count of parameters",
            *notes,
            f"[paper] {TRAFFIC.source}",
        ],
    )
    return table, [_plain(row) for row in rows]


def _plain(row: TrafficRow) -> dict[str, Any]:
    figures = (row.published_parameters, row.published_mb)
    published = [figure.to_json() for figure in figures if figure]
    return asdict(row) | {"run_bytes": row.run_bytes, "published": published}


def _traffic_cells(row: TrafficRow) -> list[str]:
    return [
        row.what,
        f"{row.parameters:,}",
        str(row.published_parameters or ""),
        f"{row.run_bytes / 1e6:,.1f}",
        str(row.published_mb or ""),
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
    rows: list[dict[str, Any]] = []
    lines = []
    for language in languages:
        far = distance(language, mixture)
        values = [accuracy[language] for accuracy in shares.values()]
        gain = values[-1] - values[0]
        cells = [f"{100 * value:.1f} %" for value in values]
        lines.append([language, f"{far:.3f}", *cells, f"{100 * gain:+.1f}"])
        rows.append({"language": language, "distance": far, "gain": gain})
    fars, gains = ([float(row[name]) for row in rows] for name in ("distance", "gain"))
    notes = [
        "gain: points that federation adds, the last column of accuracies less the first",
        f"V_p: {', '.join(f'{name} {share:g}' for name, share in mixture.items())}",
        table_vectors().source,
    ]
    if len(rows) >= 8 and np.std(gains) > 0:  # of fewer a correlation says nothing
        slope = float(np.corrcoef(fars, gains)[0, 1])
        notes.append(f"correlation of distance and gain {slope:+.2f}")
    names = ("distance", *shares, "gain")
    columns = [Column("language", "word"), *(Column(name) for name in names)]
    title = "language distance -log cos(v, V_p), and accuracy"
    return Table(columns, lines, title, notes, SUMMARY), rows


def stop_table(found: Sequence[Measured]) -> tuple[Table, list[dict[str, Any]]]:
    """After which round training ended that may end early, and which round's adapter was kept."""
    rows: list[dict[str, Any]] = [
        {
            "row": item.cell.row,
            "arm": arm,
            "ended": [rows[-1].round_index for rows in by_seed],
            "kept": [rows[-1].kept for rows in by_seed],
        }
        for item in found
        if item.cell.experiment.patience
        for arm, by_seed in _by_arm(item).items()
    ]
    lines = [
        [one["row"], one["arm"] or "all", *(", ".join(map(str, one[key])) for key in WHEN)]
        for one in rows
    ]
    columns = [Column("trained", "text"), Column("who", "word")]
    columns += [Column("ended after, by seed"), Column("kept, by seed")]
    return Table(columns, lines, "when training ended, in rounds", more=SUMMARY), rows


def _by_arm(item: Measured) -> dict[str, list[list[Row]]]:
    """Rows of each who trained one adapter, with each seed."""
    found: dict[str, list[list[Row]]] = {}
    for result in item.results:
        own: dict[str, list[Row]] = {}
        for row in result.rows:
            own.setdefault(row.arm, []).append(row)
        for arm, rows in own.items():
            found.setdefault(arm, []).append(rows)
    return dict(sorted(found.items()))
