"""The models table as files: Markdown, CSV, JSON, and one HTML page that opens without a network.

    rates = measured_once(Path("models/rates.json"), asdict(this_machine()))
    write_pages(cells, [record.conditions for record in records], Path("models"), rates)

The HTML page holds its style, its charts and its few lines of script; it loads nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from edge_client.files import write_atomically
from profiling.estimates.rates import Rates
from profiling.models.cell import Cell
from profiling.pages import flat, html, markdown
from profiling.pages.answers import latest
from profiling.pages.contents import contents, ordered
from profiling.records.record import Conditions


def write_pages(
    cells: Sequence[Cell],
    conditions: Sequence[Conditions],
    folder: Path,
    rates: Rates | None = None,
    left_out: int = 0,
) -> list[Path]:
    """Write models.md, models.csv, models.json and models.html.

    Args:
        cells: In any order; of one that was measured twice the last counts.
        conditions: Of every record the cells are from.
        folder: Made if it is not there; pages that are there are replaced.
        rates: This machine's, measured; without them nothing is estimated.
        left_out: How many records of other machines are not among them.

    Raises:
        Failed: Jinja is not installed; nothing is written.
    """
    cells = ordered(latest(cells))
    page = contents(cells, conditions, rates, left_out)
    texts = {
        "models.html": html.render(page),
        "models.md": markdown.render(page),
        "models.csv": flat.as_csv(cells),
        "models.json": flat.as_json(cells, conditions, rates),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]
