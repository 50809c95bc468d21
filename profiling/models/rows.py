"""Which cells are wanted: bases, ways to train them and budgets, all of them or some drawn."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_client.bases.base import open_base
from edge_client.bases.configurations import shape_of
from edge_client.bases.random_models import CONFIGS, hub_config
from edge_client.errors import demand
from profiling.instruments.bases import BenchmarkError
from profiling.models.cell import BUDGETS, METHODS, PEERS, Cell

BASES = (
    *("albert-base", "distilbert", "bert-base", "bert-large"),
    *("roberta-base", "roberta-large", "xlm-roberta-base"),
)


def is_random(base: str) -> bool:
    return base in CONFIGS and not Path(base).is_dir()


def pick_bases(more: Sequence[str], only: Sequence[str]) -> list[str]:
    """The rows: the usual ones and one's own, or those of them that are picked.

    Raises:
        BenchmarkError: One that is picked is no row.
        BaseError: One of one's own is not there.
    """
    rows = list(dict.fromkeys([*BASES, *more]))
    for base in only:
        known = ", ".join(rows)
        demand(base in rows, f"--only {base} is not a row; one of {known}", BenchmarkError)
    picked = [base for base in rows if base in only] if only else rows
    for base in picked:  # each is there, before hours of work
        if not is_random(base):
            open_base(base)
    return picked


def pick_cells(
    like: Cell, bases: Sequence[str], methods: Sequence[str], budgets: Sequence[str]
) -> list[Cell]:
    """Every cell that is wanted, not measured yet, one base after the other.

    Args:
        like: Gives batch, tokens, adapter and instruction set.
        bases: The rows.
        methods: Some of `METHODS`; empty: all.
        budgets: Of our engines; empty: the usual ones.

    Raises:
        BenchmarkError: A method that is not known.
    """
    for method in methods:
        known = ", ".join(METHODS)
        demand(method in METHODS, f"--method {method} is not one of {known}", BenchmarkError)
    chosen = [method for method in METHODS if method in methods] if methods else METHODS
    found = []
    for base in bases:
        for method in chosen:
            of_budget = ("",) if method in PEERS else dict.fromkeys(budgets or BUDGETS)
            adapter = "all weights" if method == "full" else like.adapter
            for budget in of_budget:
                cell = replace(like, base=base, method=method, budget=budget, adapter=adapter)
                found.append(cell)
    return found


def draw(cells: Sequence[Cell], sample: int | None, seed: int) -> list[Cell]:
    """Some of the cells in their order, drawn by the seed; all without a number.

    Raises:
        BenchmarkError: More than there are, or none.
    """
    if sample is None:
        return list(cells)
    if not 1 <= sample <= len(cells):
        raise BenchmarkError(f"--sample {sample}: 1 to {len(cells)} cells are there to draw from")
    chosen = random.Random(seed).sample(range(len(cells)), sample)
    return [cells[index] for index in sorted(chosen)]


def size_of_work(base: str) -> float:
    """How much a step on a base computes beside other bases: layers times width squared."""
    shape = shape_of(hub_config(base)) if is_random(base) else open_base(base).shape
    return float(shape.layers * shape.hidden**2)
