"""Homes of three ranks beside homes that all have rank 8, by what the mean of LoRA is taken of.

Of 12 clients a third each take rank 4, 8 and 16. The exact mean of products is set beside the means
of A and B apart, which is what FedAvg on factors comes to: with zeros for what a device lacks
(`padded`), or over those that have it (`apart`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coordinator.rounds.learning.settings import Learning
from edge_client.tables import Column, Table, sizes
from simulation.experiments.experiment import Experiment
from simulation.papers.learning.setting import AG_NEWS
from simulation.papers.paired import beside, by_seed, known, paired, points
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

CLIENTS, COHORT, LABELLED = 12, 6, 192
ROUNDS, QUICK_ROUNDS = 15, 2
TEXTS, QUICK_TEXTS = 500, 20
ALPHA = 0.5  # of the skewed labels
RANKS = (4, 8, 16)
ALL_8 = "rank 8, factors"
METHODS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    ALL_8: ("lora:8", "factors", ()),
    "rank 8, product": ("lora:8", "product", ()),
    "ranks 4/8/16, product": ("lora:16", "product", RANKS),
    "ranks 4/8/16, zeros for what is lacking": ("lora:16", "padded", RANKS),
    "ranks 4/8/16, A and B apart": ("lora:16", "apart", RANKS),
}
NOTES = (
    f"{CLIENTS} clients, {COHORT} a round, {LABELLED} labels of AG News, 2 local epochs, batch 4; "
    f"skewed: labels dealt by a Dirichlet of alpha {ALPHA:g}",
    "ranks 4/8/16: the run's adapter has rank 16; every third client takes the first 4 or 8 of its "
    "components, rescaled for alpha / r",
)


def mixed_ranks(base: str, quick: bool) -> Scenario:
    """Every method on even and skewed labels.

    Args:
        base: `embedded`, a folder or a hub name.
        quick: Fewer rounds and test texts.
    """
    cells = [
        Cell(row, column, experiment(base, row, alpha, quick))
        for row in METHODS
        for column, alpha in (("even", math.inf), ("skewed", ALPHA))
    ]
    title = "Mixed ranks: final accuracy in %"
    return Scenario("mixed-ranks", title, tuple(cells), NOTES)


def experiment(base: str, row: str, alpha: float, quick: bool) -> Experiment:
    """One method."""
    adapter, lora_mean, ranks = METHODS[row]
    return replace(
        AG_NEWS,
        name="mixed-ranks",
        base=base,
        adapter=adapter,
        deal=Deal(clients=CLIENTS, labelled=LABELLED, alpha=alpha),
        learning=Learning(lora_mean=lora_mean),
        ranks=ranks,
        rounds=QUICK_ROUNDS if quick else ROUNDS,
        cohort=COHORT,
        evaluate_every=5,
        test_texts=QUICK_TEXTS if quick else TEXTS,
    )


def paired_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Each method minus rank 8 for all, seed by seed; the same for machines."""
    plain = [_paired(item, found) for item in found]
    rows = [
        [
            str(one["method"]),
            str(one["labels"]),
            points(one["accuracy"]),
            points(one["difference"], "+"),
            by_seed(one["difference_by_seed"]),
            points(one["balanced"]),
            "-" if one["most_lost"] is None else f"{100 * one['most_lost']:.2f} %",
            sent,
        ]
        for one, sent in zip(plain, sizes([one["bytes_up"] for one in plain]), strict=True)
    ]
    columns = [Column("method", "text"), Column("labels", "text"), Column("final")]
    columns += [Column(name) for name in ("paired", "by seed", "prior taken off", "left out", "up")]
    notes = (
        f"paired: minus {ALL_8} of the same labels and seed; ±: standard deviation over seeds",
        "prior taken off: the labels' mean log-probability over all test texts, off each answer",
        "left out: the largest share of a round's squared norm that the run's rank could not keep",
    )
    return Table(columns, rows, f"minus {ALL_8}", list(notes), SUMMARY), plain


def _paired(item: Measured, found: Sequence[Measured]) -> dict[str, Any]:
    lost = [row.lost for one in item.results for row in one.rows if row.lost is not None]
    return {
        "method": item.cell.row,
        "labels": item.cell.column,
        **paired(item, beside(item, found, ALL_8)),
        "balanced": known([result.balanced for result in item.results]),
        "most_lost": max(lost) if lost else None,
        "bytes_up": round(item.total("bytes_up")),
    }
