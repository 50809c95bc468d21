"""F1 of entities that taggers found: of all texts together, and by language."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from edge_client.tables import Column, Table
from edge_client.tasks.counts import EntityScores, scores_of
from simulation.experiments.result import Result
from simulation.experiments.scoring import together
from simulation.papers.grid import read_file
from simulation.papers.scenario import SUMMARY, Measured
from simulation.papers.tables.silos import beside

KINDS = ("strict", "typed", "partial", "macro", "weighted")
ALL = "all"


def scores(result: Result) -> dict[str, EntityScores]:
    """By language, and of all texts together."""
    found = result.final().entities
    by_name = {name: scores_of(one) for name, one in found.items()}
    return by_name | {ALL: scores_of(together(list(found.values())))}


def ner_tables(found: Sequence[Measured]) -> tuple[list[Table], dict[str, Any]]:
    """F1 of entities of each cell, strict F1 by language, and the paper's table."""
    by_cell = [(item.cell, [scores(result) for result in item.results]) for item in found]
    names = sorted({name for _, each in by_cell for name in each[0] if name and name != ALL})

    def table(title: str, wanted: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> Table:
        """A column for each language, or all of them, and kind of F1."""
        heads = [Column("set", "word"), Column("trained", "text")]
        heads += [Column(kind if name == ALL else name) for name, kind in wanted]
        rows = [
            [cell.column, cell.row, *(_percent(each, name, kind) for name, kind in wanted)]
            for cell, each in by_cell
        ]
        return Table(heads, rows, title, notes, SUMMARY)

    notes = (
        "strict: right words and type, of all together (micro); typed: right type, a word in "
        "common; partial: words whatever the type, half for some of them; macro, weighted: means "
        "of the types' strict F1",
        "all in %; ±: standard deviation over seeds",
    )
    tables = [
        table("F1 of entities", [(ALL, kind) for kind in KINDS], notes),
        table("strict F1 by language", [(name, "strict") for name in names]),
        read_file("healthcare")[1].tables["entities"].shown(),
    ]
    told = [
        {
            "set": cell.column,
            "trained": cell.row,
            "f1_by_seed": [
                {name or ALL: asdict(one) for name, one in seed.items()} for seed in each
            ],
        }
        for cell, each in by_cell
    ]
    return tables, {"cells": told}


def _percent(each: Sequence[Mapping[str, EntityScores]], name: str, kind: str) -> str:
    """Over seeds; where nothing is there and nothing was found, nothing is right."""
    there = [one[name] for one in each if name in one]
    return beside([100 * (getattr(one, kind) or 0.0) for one in there])
