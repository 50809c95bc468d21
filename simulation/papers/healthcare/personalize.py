"""Silos that train on alone, from the first weights and from those of all rounds; and in between.

The healthcare paper's table 6 and figure 3. Alpha is chosen by a fifth of a silo's training texts,
which its own training leaves out.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_client.tables import Column, Table
from simulation.experiments.personal.settings import Personal
from simulation.experiments.result import mean_and_spread
from simulation.papers.fedp2eft.interpolate import Ends, ends_of
from simulation.papers.healthcare.perplexity import beside, notes
from simulation.papers.healthcare.setting import (
    BATCH,
    QUICK,
    Scale,
    federated,
    sizes_of,
)
from simulation.papers.paired import rows_apart
from simulation.papers.published.as_printed import printed_table
from simulation.papers.published.healthcare import BEST_ALPHA, PERSONALISED
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario

TEXTS, QUICK_TEXTS = 300, 40
TESTS = 60
EPOCHS, QUICK_EPOCHS = 2, 1
LR = 1e-4  # no other was tried
COLUMN = "mean of languages"
KINDS = {"Federated": "shared", "Personalized": "own", "Interpolated": "chosen"}


def personalize(base: str, adapter: str, scale: Scale, data: Path | None) -> Scenario:
    """The rounds of all silos, then each for itself from two places.

    Args:
        base: A folder, or a hub name.
        adapter: What is trained: `full`, or an adapter.
        scale: How large.
        data: Folder of data sets.
    """
    is_quick = scale == QUICK
    texts, epochs = (QUICK_TEXTS, QUICK_EPOCHS) if is_quick else (TEXTS, EPOCHS)
    tests = min(TESTS, scale.test_texts)
    cut = replace(scale, train_texts=texts, test_texts=tests)
    usual = replace(federated(base, adapter, cut), evaluate_every=0)
    begun = {"own from the beginning": 0, "own after all rounds": None}
    cells = tuple(
        Cell(row, COLUMN, replace(usual, personal=_own(epochs, start)), of_languages=True)
        for row, start in begun.items()
    )
    told = (
        *notes(usual, sizes_of(usual, data)),
        f"at most {texts} texts of a silo, in rounds too, so that English does not take hours: "
        "its lead over others is smaller than in `perplexity`",
        f"own: AdamW {LR:g}, batches of {BATCH}, {epochs} passes over four fifths of a silo's "
        "texts; alpha by the last fifth, which the rounds have seen and its own training has not",
    )
    title = "Silos that train on alone: accuracy of masked tokens in %"
    late, early = reversed(begun)
    pairs = rows_apart(cells, (late, early))
    return Scenario("healthcare personalize", title, cells, told, pairs=pairs)


def _own(epochs: int, start: int | None) -> Personal:
    return Personal("interpolated", lr=LR, epochs=epochs, batch=BATCH, start=start)


def personal_tables(found: Sequence[Measured]) -> tuple[list[Table], dict[str, Any]]:
    """Masked accuracy of the three models by language, for each beginning; the paper's below."""
    tables, told = [], {}
    for item in found:
        by_name: dict[str, list[Ends]] = {}
        for result in item.results:
            for row in sorted(result.rows, key=lambda row: row.arm):
                by_name.setdefault(row.arm, []).append(ends_of(row))
        tables.append(_table(item.cell.row, by_name))
        told[item.cell.row] = {
            name: {
                kind: mean_and_spread([getattr(one, kind) for one in ends])
                for kind in ("shared", "own", "chosen", "best")
            }
            | {"alphas": [one.alpha for one in ends]}
            for name, ends in by_name.items()
        }
    return [*tables, printed_table(PERSONALISED)], {"begun": told}


def _table(begun: str, by_name: dict[str, list[Ends]]) -> Table:
    rows = [
        [row, *(beside([100 * getattr(one, kind) for one in ends]) for ends in by_name.values())]
        for row, kind in KINDS.items()
    ]
    alphas = [", ".join(f"{one.alpha:.2f}" for one in ends) for ends in by_name.values()]
    rows.append(["alpha, by seed", *alphas])
    columns = [Column("model", "word"), *(Column(name) for name in by_name)]
    note = (
        "right answers of 100 masked tokens of the silo's test texts; alpha: 0 is the federated "
        f"model and 1 the personalized one; published for German: {BEST_ALPHA} "
        f"({BEST_ALPHA.table})"
    )
    return Table(columns, rows, f"accuracy of masked tokens in %, {begun}", [note], SUMMARY)
