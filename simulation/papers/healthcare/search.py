"""Which learning rates silos and central training are given: each tried once, on dev sentences."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_client.tables import Column, Table
from simulation.papers.healthcare.perplexity import MEAN, POOLED, TOGETHER, beside, perplexities
from simulation.papers.healthcare.setting import (
    CENTRAL_LRS,
    DEV_TEXTS,
    SERVER_LRS,
    Scale,
    central,
    federated,
    sizes_of,
)
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario


def search(base: str, adapter: str, scale: Scale, data: Path | None) -> Scenario:
    """Both ways to train by every rate that is tried, judged by dev sentences.

    Args:
        base: A folder, or a hub name.
        adapter: What is trained: `full`, or an adapter.
        scale: How large.
        data: Folder of data sets.
    """
    together = federated(base, adapter, scale)
    sizes = sizes_of(together, data)
    tried = {
        TOGETHER: {lr: federated(base, adapter, scale, lr) for lr in SERVER_LRS},
        POOLED: {lr: central(together, sizes, lr) for lr in CENTRAL_LRS},
    }
    cells = tuple(
        Cell(way, f"{lr:g}", replace(asked, dataset=DEV_TEXTS, evaluate_every=0))
        for way, by_rate in tried.items()
        for lr, asked in by_rate.items()
    )
    title = "Learning rates, on dev sentences: accuracy of masked tokens in %"
    note = "nobody is judged here by a test sentence, and nobody trains on a dev sentence"
    return Scenario("healthcare search", title, cells, (note,))


def search_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Dev perplexity by rate: the languages' geometric mean, and of all tokens together."""
    rows, told = [], []
    for item in found:
        scores = [result.final() for result in item.results]
        means = [perplexities(one)[MEAN] for one in scores]
        tokens = [math.exp(one.loss) for one in scores if one.loss is not None]
        rows.append([item.cell.row, item.cell.column, beside(means), beside(tokens)])
        told.append({"way": item.cell.row, "lr": item.cell.column, "mean": means, "all": tokens})
    heads = (Column("rate"), Column("mean of languages"), Column("of all tokens"))
    columns = [Column("way", "word"), *heads]
    return Table(columns, rows, "dev perplexity by learning rate", more=SUMMARY), told
