"""The healthcare paper's tables 1, 3, 4, 6 and figure 2: perplexity (table 4: entities) by silo.

Silos trained together, in one place, each alone, and not at all; and a base whose vocabulary covers
all letters of the silos' texts, as a folder of its own.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.papers.grid import read_file
from benchmarks.papers.tables.languages import ends_by_arm, ends_told
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tables import Column, Table
from smidgen.edge_client.tasks.counts import EntityScores, scores_of
from smidgen.profiling.canvas import colour, heading, new_figure, plain, save
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import Result, mean_and_spread
from smidgen.simulation.experiments.scoring import Score, together
from smidgen.simulation.experiments.stage import CONFIG, TOKENIZER, write_base
from smidgen.simulation.report.plots import band, draw, figures_of
from smidgen.simulation.report.scenario import SUMMARY, Measured, spread_text

SKEWED, EQUAL = "skewed sizes", "equal sizes"
TOGETHER, POOLED, ALONE, BASE = "FL", "central", "alone", "base"
APART = (ALONE, "alone, as often", "alone, as often, 10 x the rate")  # each silo for itself
MEAN = "mean"  # geometric, of languages
PICTURE = "perplexity.png"
NAMES = {
    "ar": "Arabic",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "he": "Hebrew",
    "it": "Italian",
    "pt": "Portuguese",
    "ru": "Russian",
}  # as the paper's tables call its silos
F1_KINDS, ALL = ("strict", "typed", "partial", "macro", "weighted"), "all"
KINDS = {"Federated": "shared", "Personalized": "own", "Interpolated": "chosen"}

BySeed = Sequence[Mapping[str, float]]  # perplexity by language, with each seed
Points = dict[int, list[float]]  # samples seen -> perplexity of all masked tokens, with each seed


def perplexities(score: Score) -> dict[str, float]:
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
    cells = {item.cell.name: item for item in found}
    by_way: dict[tuple[str, str], BySeed] = {
        name: [perplexities(result.final()) for result in item.results]
        for name, item in cells.items()
        if name[0] not in APART
    }
    for way in APART:
        of_silo = {silo: _of_last(cells[way, SKEWED], silo) for silo in sizes}
        by_way[way, SKEWED] = [
            dict(zip(sizes, own, strict=True))
            for own in zip(*([one[silo] for one in of_silo[silo]] for silo in sizes), strict=True)
        ]
    own = {silo: _of_last(cells[ALONE, SKEWED], silo) for silo in sizes}
    told = "of masked tokens of the test texts, exp of their mean loss; mean: geometric"
    alone = f"{ALONE}: each silo's own model on its own language"
    printed = read_file("healthcare")[1].tables["perplexity"]

    def by_language(title: str, ways: Sequence[str], column: str, *notes: str) -> Table:
        rows = [
            [
                name,
                *(
                    spread_text([one[name] for one in by_way[way, column] if name in one])
                    for way in ways
                ),
            ]
            for name in (*sizes, MEAN)
        ]
        return Table([Column("language", "word"), *map(Column, ways)], rows, title, notes, SUMMARY)

    unequal = (TOGETHER, POOLED, *APART, BASE)
    tables = [
        by_language("perplexity, silos of unequal sizes", unequal, SKEWED, told, alone),
        _silo_table(sizes, own),
        by_language("perplexity, silos of equal sizes", (TOGETHER, POOLED), EQUAL, told),
        sizes_table(cells[TOGETHER, SKEWED].cell.experiment, sizes),
        printed.shown(),
    ]
    return tables, {
        "perplexity": {f"{row}, {column}": _told(each) for (row, column), each in by_way.items()},
        "alone_on_every_language": {silo: _told(each) for silo, each in own.items()},
        "texts": dict(sizes),
        "published": {
            row: {column: figure.value for column, figure in cells.items()}
            for row, cells in printed.known.items()
        },
    }


def _of_last(item: Measured, arm: str) -> list[dict[str, float]]:
    """Perplexities of one silo's own model in the end, with each seed."""
    scores = [
        [row.score for row in one.rows if row.arm == arm and row.score] for one in item.results
    ]
    return [perplexities(one[-1]) for one in scores]


def _silo_table(sizes: Mapping[str, int], own: Mapping[str, BySeed]) -> Table:
    rows = [
        [name, *(f"{mean_and_spread([one[name] for one in own[silo]])[0]:.1f}" for silo in sizes)]
        for name in sizes
    ]
    columns = [Column("language", "word"), *(Column(f"of {silo}") for silo in sizes)]
    note = "each silo's own model on the test texts of every language; spreads: in the JSON"
    return Table(columns, rows, "perplexity, models trained alone", [note], SUMMARY)


def sizes_table(federated: Experiment, sizes: Mapping[str, int]) -> Table:
    """What each silo holds, draws in a round, and counts for in the mean."""
    printed = read_file("healthcare")[1].tables["sizes"]
    whole, smallest = sum(sizes.values()), min(sizes.values())
    rows = [
        [
            name,
            f"{texts:,}",
            f"{texts / smallest:.1f}",
            str(federated.training.samples_of(texts)),
            f"{100 * texts / whole:.1f} %",
            str(printed[NAMES[name]]["train samples"]),
        ]
        for name, texts in sizes.items()
    ]
    heads = ("texts", "to the smallest", "drawn in a round", "weight", "[paper] samples")
    columns = [Column("silo", "word"), *map(Column, heads)]
    return Table(columns, rows, "what silos hold", [f"[paper] {printed.source}"], SUMMARY)


def _told(by_seed: BySeed) -> dict[str, dict[str, object]]:
    columns = {name: [one[name] for one in by_seed] for name in by_seed[0]}
    return {
        name: dict(zip(("mean", "spread"), mean_and_spread(values), strict=True))
        | {"by_seed": values}
        for name, values in columns.items()
    }


def search_table(found: Sequence[Measured]) -> tuple[Table, Any]:
    """Dev perplexity by rate: the languages' geometric mean, and of all tokens together."""
    rows, told = [], []
    for item in found:
        scores = [result.final() for result in item.results]
        means = [perplexities(one)[MEAN] for one in scores]
        tokens = [math.exp(one.loss) for one in scores if one.loss is not None]
        rows.append([item.cell.row, item.cell.column, spread_text(means), spread_text(tokens)])
        told.append({"way": item.cell.row, "lr": item.cell.column, "mean": means, "all": tokens})
    heads = (Column("rate"), Column("mean of languages"), Column("of all tokens"))
    columns = [Column("way", "word"), *heads]
    return Table(columns, rows, "dev perplexity by learning rate", more=SUMMARY), told


def points_of(item: Measured, sizes: Mapping[str, int]) -> Points:
    """Perplexity by samples seen.

    Args:
        item: Of the scenario.
        sizes: Texts of each silo.
    """
    draw_of = item.cell.experiment.training.samples_of
    is_pooled = item.cell.experiment.paradigm == "centralised"
    per_round = sum(map(draw_of, [sum(sizes.values())] if is_pooled else sizes.values()))
    found = Points()
    for result in item.results:
        for index, score in result.curve():
            if score.loss is not None:
                found.setdefault(index * per_round, []).append(math.exp(score.loss))
    return found


def curve_table(
    found: Sequence[Measured], sizes: Mapping[str, int]
) -> tuple[Table, dict[str, Any]]:
    """Perplexity of all masked tokens after as many samples, by way to train.

    Args:
        found: The scenario's cells with their results.
        sizes: Texts of each silo.
    """
    curves = {item.cell.row: points_of(item, sizes) for item in found}
    seen = sorted({samples for points in curves.values() for samples in points})
    rows = [
        [f"{samples:,}", *(spread_text(points.get(samples, [])) for points in curves.values())]
        for samples in seen
    ]
    figures = read_file("healthcare")[1].figures
    silos, pooled = figures["converged_fl"], figures["converged_cl"]
    note = (
        "of the masked tokens of all test texts together, languages by their tokens; published "
        f"({silos.paper}, {silos.table}): FL {silos}, CL {pooled} after about 10 % of its "
        "texts"
    )
    columns = [Column("samples seen"), *map(Column, curves)]
    told = {name: {str(at): each for at, each in points.items()} for name, points in curves.items()}
    return Table(columns, rows, "perplexity by samples seen", [note], SUMMARY), told


def draw_curve(
    found: Sequence[Measured], folder: Path, title: str, sizes: Mapping[str, int]
) -> list[Path]:
    """Write the usual pictures, and `perplexity.png`: the figure, with the spread as a band.

    Args:
        found: The scenario's cells with their results.
        folder: Where to.
        title: The first line of each picture.
        sizes: Texts of each silo.
    """
    told = title.replace("accuracy of masked tokens in %", "perplexity of masked tokens")
    figure = new_figure(6.4, 4.2, f"{told}\n{figures_of(found)}")
    axis = figure.subplots()
    for number, item in enumerate(found):
        points = points_of(item, sizes)
        means, spreads = zip(*(mean_and_spread(each) for each in points.values()), strict=True)
        style = {"color": colour(number), "marker": ".", "label": item.cell.row}
        axis.plot(list(points), means, **style)
        band(axis, list(points), means, spreads, colour(number))
    axis.set(xlabel="samples seen", ylabel="perplexity", yscale="log", xlim=(0, None))
    heading(axis, "test texts of all languages: mean over seeds, the band is ± its spread")
    axis.legend(frameon=False)
    plain([axis])
    return [*draw(found, folder, title), save(figure, folder / PICTURE)]


def personal_tables(found: Sequence[Measured]) -> tuple[list[Table], dict[str, Any]]:
    """Masked accuracy of the three models by language, for each beginning; the paper's below."""
    printed = read_file("healthcare")[1]
    best = printed.figures["best_alpha"]
    note = (
        "right answers of 100 masked tokens of the silo's test texts; alpha: 0 is the federated "
        f"model and 1 the personalized one; published for German: {best} ({best.table})"
    )
    tables, told = [], {}
    for item in found:
        ends = ends_by_arm(item)
        rows = [
            [
                row,
                *(
                    spread_text([100 * getattr(one, kind) for one in each])
                    for each in ends.values()
                ),
            ]
            for row, kind in KINDS.items()
        ]
        alphas = [", ".join(f"{one.alpha:.2f}" for one in each) for each in ends.values()]
        columns = [Column("model", "word"), *map(Column, ends)]
        title = f"accuracy of masked tokens in %, {item.cell.row}"
        tables.append(Table(columns, [*rows, ["alpha, by seed", *alphas]], title, [note], SUMMARY))
        told[item.cell.row] = {name: ends_told(each) for name, each in ends.items()}
    return [*tables, printed.tables["personalised"].shown()], {"begun": told}


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
        table("F1 of entities", [(ALL, kind) for kind in F1_KINDS], notes),
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
    return spread_text([100 * (getattr(one, kind) or 0.0) for one in there])


SCRIPTS = ((0x0430, 0x044F), (0x05D0, 0x05EA), (0x0621, 0x063A), (0x0641, 0x064A))
PUNCTUATION = "،؛؟"  # Arabic's own; a sign is a word of one letter
LETTERS = tuple(chr(code) for first, last in SCRIPTS for code in range(first, last + 1))
WORDPIECE, WITHIN = "WordPiece", "##"


def lettered(base: Base, out: Path) -> Path:
    """A folder of the base that knows every Cyrillic, Hebrew and Arabic letter as a token.

    A base without them reads whole words of these scripts as unknown, and guesses that they are,
    which looks like knowledge of the language. A new token begins as what the base took it for: the
    unknown token's row, and an equal part of its probability; nothing else changes. Law: a base
    that knows all of them stays where it is, and so does one whose tokenizer is not WordPiece.

    Args:
        base: A pack, or a Hugging Face folder.
        out: Folder that the base's folder is made in, where one is needed.
    """
    if base.manifest is not None:
        return base.folder
    tokenizer: dict[str, Any] = json.loads((base.folder / TOKENIZER).read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model["type"] != WORDPIECE:
        return base.folder
    known: dict[str, int] = model["vocab"]
    wanted = (*LETTERS, *(f"{WITHIN}{letter}" for letter in LETTERS), *PUNCTUATION)
    new = [token for token in wanted if token not in known]
    if not new:
        return base.folder
    rows = len(known)
    model["vocab"] = known | {token: rows + place for place, token in enumerate(new)}
    config = json.loads((base.folder / CONFIG).read_text(encoding="utf-8"))
    config["vocab_size"] = rows + len(new)
    unknown = known[model["unk_token"]]
    tensors = {
        name: _longer(tensor, unknown, len(new)) if len(tensor) == rows else tensor
        for name, tensor in sorted(load_file(base.weights).items())
    }
    return write_base(out / f"{_plain(base.name)}-letters", config, tokenizer, tensors)


def _longer(tensor: np.ndarray, unknown: int, more: int) -> np.ndarray:
    """A table with more rows, or a bias with more numbers, all as the unknown token's.

    Of a bias all of them have what that token had of the probability, as they have one row.
    """
    row = tensor[unknown : unknown + 1]
    if tensor.ndim > 1:
        return np.concatenate([tensor, np.repeat(row, more, axis=0)])
    lower = (row - np.log(more + 1)).astype(tensor.dtype)
    found = np.concatenate([tensor, np.repeat(lower, more)])
    found[unknown] = lower[0]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name)
