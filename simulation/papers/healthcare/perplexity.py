"""Perplexity of silos' texts: trained together, in one place, each alone, and not at all.

The healthcare paper's table 3, and beside it the same with silos that hold equally many texts.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_client.tables import Column, Table
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import mean_and_spread
from simulation.experiments.scoring import Score
from simulation.papers.healthcare.setting import (
    NAMES,
    Scale,
    alone,
    alone_as_often,
    central,
    equal,
    federated,
    sizes_of,
    untrained,
)
from simulation.papers.published.as_printed import printed_table
from simulation.papers.published.figure import Table as Printed
from simulation.papers.published.figure import shown
from simulation.papers.published.healthcare import PERPLEXITY, SIZES
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario

SKEWED, EQUAL = "skewed sizes", "equal sizes"
TOGETHER, POOLED, ALONE, BASE = "FL", "central", "alone", "base"
OFTEN, FASTER, TIMES = "alone, as often", "alone, as often, 10 x the rate", 10.0
APART = (ALONE, OFTEN, FASTER)  # ways to train each silo for itself
MEAN = "mean"  # geometric, of languages


def perplexity(base: str, adapter: str, scale: Scale, data: Path | None) -> Scenario:
    """Silos of very unequal sizes, by every way to train; together and pooled with equal ones too.

    Args:
        base: A folder, or a hub name.
        adapter: What is trained: `full`, or an adapter.
        scale: How large.
        data: Folder of data sets.
    """
    together = federated(base, adapter, scale)
    sizes = sizes_of(together, data)
    pooled = central(together, sizes)
    level = equal(together, sizes)
    apart = alone(pooled, sizes)
    level_sizes = dict.fromkeys(sizes, min(sizes.values()))
    cells = (
        Cell(TOGETHER, SKEWED, together),
        Cell(POOLED, SKEWED, pooled),
        Cell(ALONE, SKEWED, apart),
        Cell(OFTEN, SKEWED, alone_as_often(apart, together)),
        Cell(FASTER, SKEWED, alone_as_often(apart, together, TIMES)),
        Cell(BASE, SKEWED, untrained(base, scale)),
        Cell(TOGETHER, EQUAL, level),
        Cell(POOLED, EQUAL, central(level, level_sizes, looks=pooled.rounds)),
    )
    title = "Silos of nine languages: accuracy of masked tokens in %"
    told = (
        *notes(together, sizes),
        "alone: mean over the models of all silos, each of all texts",
        f"{OFTEN}: over as many samples of a silo's own texts as the rounds draw of them; "
        f"{ALONE}: once over the part of its texts that central training sees of all",
    )
    return Scenario("healthcare perplexity", title, cells, told)


def notes(together: Experiment, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """How this differs from the paper: sizes, draws, rates."""
    training = together.training
    largest, smallest = max(sizes.values()), min(sizes.values())
    drawn = training.samples_of(largest)
    return (
        f"a round draws max({training.least_samples}, {training.sample_share:g} N) texts of each "
        f"silo; the paper's max(500, 0.8e-4 N), made smaller with the sizes: {drawn} of "
        f"{largest:,} where most are, {training.samples_of(smallest)} of {smallest} where fewest; "
        "with replacement, weighted by N",
        f"FL: {together.rounds} rounds, SGD {training.lr:g} that begins anew, the server's Adam "
        f"{together.learning.lr:g}, falling by {together.learning.decay} of it in each round; "
        "central: AdamW over as many samples of all texts",
        "rates: searched once by --search, on dev sentences with seed 0; the paper's are for "
        "batches of 2,048",
        "BASE-letters: the base, to which Cyrillic, Hebrew and Arabic letters that its tokenizer "
        "lacks were added, each as an equal part of its unknown token",
        "embedded: it has read sentences of these sets in English, Spanish, French and German "
        "before, tests among them; a base by `simulate pretrain --languages all` nearly all of "
        "them in all languages; read columns beside each other, not levels",
    )


def perplexities(score: Score) -> dict[str, float]:
    """By language, and their geometric mean."""
    found = {name: math.exp(loss) for name, loss in score.losses.items()}
    return found | {MEAN: math.exp(sum(score.losses.values()) / len(score.losses))}


def perplexity_tables(
    found: Sequence[Measured], sizes: Mapping[str, int]
) -> tuple[list[Table], dict[str, Any]]:
    """By language and way to train, of each silo's model on all languages, and of equal sizes.

    Args:
        found: The scenario's cells with their results.
        sizes: Texts of each silo.
    """
    cells = {(item.cell.row, item.cell.column): item for item in found}
    by_way = {
        key: [perplexities(result.final()) for result in item.results]
        for key, item in cells.items()
        if key[0] not in APART
    }
    for way in APART:
        apart = cells[way, SKEWED]
        of_silo = {silo: of_last(apart, silo) for silo in sizes}
        by_way[way, SKEWED] = [
            {silo: of_silo[silo][seed][silo] for silo in sizes}
            for seed in range(len(apart.results))
        ]
    own = {silo: of_last(cells[ALONE, SKEWED], silo) for silo in sizes}
    ways = (TOGETHER, POOLED, *APART, BASE)
    tables = [
        _way_table("perplexity, silos of unequal sizes", sizes, by_way, ways, SKEWED),
        _silo_table(sizes, own),
        _way_table("perplexity, silos of equal sizes", sizes, by_way, (TOGETHER, POOLED), EQUAL),
        sizes_table(cells[TOGETHER, SKEWED].cell.experiment, sizes),
        printed_table(PERPLEXITY),
    ]
    plain = {
        "perplexity": {f"{row}, {column}": _told(each) for (row, column), each in by_way.items()},
        "alone_on_every_language": {silo: _told(each) for silo, each in own.items()},
        "texts": dict(sizes),
        "published": {row: _plain(PERPLEXITY, row) for row in PERPLEXITY.rows},
    }
    return tables, plain


def of_last(item: Measured, arm: str) -> list[dict[str, float]]:
    """Perplexities of one silo's own model in the end, with each seed."""
    found = []
    for result in item.results:
        scores = [row.score for row in result.rows if row.arm == arm and row.score is not None]
        found.append(perplexities(scores[-1]))
    return found


def _way_table(
    title: str,
    sizes: Mapping[str, int],
    by_way: Mapping[tuple[str, str], Sequence[Mapping[str, float]]],
    ways: Sequence[str],
    column: str,
) -> Table:
    rows = [
        [name, *(beside([one.get(name) for one in by_way[way, column]]) for way in ways)]
        for name in (*sizes, MEAN)
    ]
    told = "of masked tokens of the test texts, exp of their mean loss; mean: geometric"
    mine = f"{ALONE}: each silo's own model on its own language" if ALONE in ways else ""
    columns = [Column("language", "word"), *(Column(way) for way in ways)]
    return Table(columns, rows, title, [one for one in (told, mine) if one], SUMMARY)


def beside(values: Sequence[float | None]) -> str:
    """Mean and spread over seeds; `-` where a way has no such figure."""
    known = [one for one in values if one is not None]
    if not known:
        return "-"
    mean, spread = mean_and_spread(known)
    return f"{mean:.1f} ± {spread:.1f}" if len(known) > 1 else f"{mean:.1f}"


def _silo_table(
    sizes: Mapping[str, int], own: Mapping[str, Sequence[Mapping[str, float]]]
) -> Table:
    rows = [
        [name, *(f"{mean_and_spread([one[name] for one in own[silo]])[0]:.1f}" for silo in sizes)]
        for name in sizes
    ]
    columns = [Column("language", "word"), *(Column(f"of {silo}") for silo in sizes)]
    note = "each silo's own model on the test texts of every language; spreads: in the JSON"
    return Table(columns, rows, "perplexity, models trained alone", [note], SUMMARY)


def sizes_table(together: Experiment, sizes: Mapping[str, int]) -> Table:
    """What each silo holds, draws in a round, and counts for in the mean."""
    whole, smallest = sum(sizes.values()), min(sizes.values())
    rows = [
        [
            name,
            f"{texts:,}",
            f"{texts / smallest:.1f}",
            str(together.training.samples_of(texts)),
            f"{100 * texts / whole:.1f} %",
            shown(SIZES.at(NAMES[name], "train samples")),
        ]
        for name, texts in sizes.items()
    ]
    heads = ("texts", "to the smallest", "drawn in a round", "weight", "[paper] samples")
    columns = [Column("silo", "word"), *(Column(head) for head in heads)]
    return Table(columns, rows, "what silos hold", [f"[paper] {SIZES.source}"], SUMMARY)


def _told(by_seed: Sequence[Mapping[str, float]]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name in by_seed[0]:
        values = [one[name] for one in by_seed]
        mean, spread = mean_and_spread(values)
        found[name] = {"mean": mean, "spread": spread, "by_seed": values}
    return found


def _plain(table: Printed, row: str) -> dict[str, float]:
    return {column: figure.value for column, figure in table.by_column(row).items()}
