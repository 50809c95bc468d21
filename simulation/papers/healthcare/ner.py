"""Entities tagged by silos together and by all texts in one place; and by bases trained before.

The healthcare paper's table 4 tags public sets in one place, from a base that silos trained
together and from one that all texts trained. Beside that stands the tagger itself trained by silos.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edge_client.tables import Column, Table
from edge_client.tasks.counts import EntityScores, scores_of
from edge_client.wire.training import Training
from simulation.datasets.silos import LANGUAGES
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import Result
from simulation.experiments.scoring import together
from simulation.papers.healthcare.perplexity import POOLED, TOGETHER, beside
from simulation.papers.healthcare.setting import (
    BATCH,
    DECAY,
    TOKENS,
    Scale,
    central,
    federated,
    sizes_of,
)
from simulation.papers.published.as_printed import printed_table
from simulation.papers.published.healthcare import ENTITIES
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario
from simulation.population.deal import Deal

PLAIN = "plain base"
AFTER = {TOGETHER: "base after FL", POOLED: "base after central"}
KINDS = ("strict", "typed", "partial", "macro", "weighted")
LR = 5e-4
SEED = 0  # of the runs whose weights taggers of all seeds begin from


@dataclass(frozen=True)
class Tagged:
    """A tagged set and its silos.

    Attributes:
        dataset: Its name.
        deal: Who holds what: a silo per language, or texts dealt evenly.
        test_texts: Texts of each language that are judged by.
        languages: Those of a set in several; none: English alone.
    """

    dataset: str
    deal: Deal
    test_texts: int
    languages: tuple[str, ...] = ()


BY_LANGUAGE, SILOS = Deal(by="language", clients=0), Deal(clients=4)
SETS = (
    Tagged("ner_bc5cdr", SILOS, 900),
    Tagged("ner_ncbi_disease", SILOS, 900),
    Tagged("ner_e3c_clinical", BY_LANGUAGE, 200, ("en", "es", "fr", "it")),
    Tagged("ner_panx", BY_LANGUAGE, 100, LANGUAGES),
)


@dataclass(frozen=True)
class Length:
    """How long taggers are trained, and by how much they are judged.

    Attributes:
        rounds: Of all silos.
        samples: That all silos draw together over all rounds, and central training too.
        train_texts: Texts of each language that there are at most.
        test_texts: Texts of each language that are judged by at most.
    """

    rounds: int
    samples: int
    train_texts: int
    test_texts: int


WHOLE, QUICK = Length(10, 1_600, 2_000, 900), Length(2, 64, 40, 10)
QUICK_LANGUAGES = ("de", "en", "fr")


def teachers(base: str, adapter: str, scale: Scale, data: Path | None) -> dict[str, Experiment]:
    """What trains the bases that taggers of all seeds begin from, by its way; as `perplexity` does.

    Args:
        base: A Hugging Face folder, or `embedded`.
        adapter: Every weight, so that what was trained is a base.
        scale: How large.
        data: Folder of data sets.
    """
    together = replace(federated(base, adapter, scale), seed=SEED)
    return {TOGETHER: together, POOLED: central(together, sizes_of(together, data))}


def ner(base: str, after: Mapping[str, Experiment], adapter: str, quick: bool) -> Scenario:
    """Every set: together and in one place from the base, in one place from what was trained.

    Args:
        base: A folder, or a hub name.
        after: Way of an earlier run -> the run that trained its base; may be empty.
        adapter: What is trained, with its head.
        quick: Fewer texts and rounds.
    """
    length = QUICK if quick else WHOLE
    cells = []
    for tagged in SETS:
        usual = _together(tagged, base, adapter, length, quick)
        cells.append(Cell(f"{TOGETHER}, {PLAIN}", tagged.dataset, usual))
        pooled = _pooled(usual, length)
        cells.append(Cell(f"{POOLED}, {PLAIN}", tagged.dataset, pooled))
        for way, teacher in after.items():
            begun = replace(pooled, taught=teacher)
            cells.append(Cell(f"{POOLED}, {AFTER[way]}", tagged.dataset, begun))
    return Scenario(
        "healthcare ner", "Entities: accuracy of tags in %", tuple(cells), _notes(length)
    )


def _together(tagged: Tagged, base: str, adapter: str, length: Length, quick: bool) -> Experiment:
    languages = tagged.languages
    if quick and languages:
        languages = tuple(one for one in languages if one in QUICK_LANGUAGES)
    silos = len(languages) or tagged.deal.clients
    least = max(1, round(length.samples / length.rounds / silos))
    return Experiment(
        "tagger",
        tagged.dataset,
        languages=languages,
        base=base,
        adapter=adapter,
        deal=tagged.deal,
        training=Training(
            epochs=1,
            batch=BATCH,
            lr=LR,
            weight_decay=DECAY,
            tokens=TOKENS,
            least_samples=least,
        ),
        rounds=length.rounds,
        evaluate_every=0,
        train_texts=length.train_texts,
        test_texts=min(tagged.test_texts, length.test_texts),
    )


def _pooled(usual: Experiment, length: Length) -> Experiment:
    training = replace(usual.training, least_samples=length.samples)
    return replace(usual, paradigm="centralised", training=training, rounds=1)


def _notes(length: Length) -> tuple[str, ...]:
    return (
        f"FL: {length.rounds} rounds of all silos, AdamW {LR:g} in each, their mean by texts; "
        f"central: one training; both see about {length.samples:,} samples. One rate for all, not "
        "searched",
        "silos: languages of E3C and PAN-X; of BC5CDR and NCBI four with texts at random",
        f"at most {length.train_texts:,} training texts of a language, {TOKENS} tokens of each; "
        "words behind them count as outside",
        f"{', '.join(AFTER.values())}: what `perplexity` gives with seed 0, its head drawn anew; "
        "the paper's table 4 compares those two",
        "embedded: has read, without tags, a quarter to nearly half of the sentences that PAN-X is "
        "judged by in English, French, German and Spanish, and none in five of the others; read "
        "rows beside each other, not languages",
    )


def scores(result: Result) -> dict[str, EntityScores]:
    """By language, and of all texts together under an empty name."""
    found = result.final().entities
    by_name = {name: scores_of(one) for name, one in found.items()}
    return by_name | {"": scores_of(together(list(found.values())))}


def ner_tables(found: Sequence[Measured]) -> tuple[list[Table], dict[str, Any]]:
    """F1 of entities of each cell, strict F1 by language, and the paper's table."""
    heads = [Column("set", "word"), Column("trained", "text")]
    of_all = [(item, [scores(result) for result in item.results]) for item in found]
    whole = [
        [
            item.cell.column,
            item.cell.row,
            *(_percent([one[""] for one in each], kind) for kind in KINDS),
        ]
        for item, each in of_all
    ]
    names = sorted({name for _, each in of_all for name in each[0] if name})
    by_language = [
        [
            item.cell.column,
            item.cell.row,
            *(
                _percent([one[name] for one in each], "strict") if name in each[0] else "-"
                for name in names
            ),
        ]
        for item, each in of_all
    ]
    notes = (
        "strict: right words and type, of all together (micro); typed: right type, a word in "
        "common; partial: words whatever the type, half for some of them; macro, weighted: means "
        "of the types' strict F1",
        "all in %; ±: standard deviation over seeds",
    )
    tables = [
        Table([*heads, *map(Column, KINDS)], whole, "F1 of entities", notes, SUMMARY),
        Table([*heads, *map(Column, names)], by_language, "strict F1 by language", (), SUMMARY),
        printed_table(ENTITIES),
    ]
    return tables, {"cells": [_told(item, each) for item, each in of_all]}


def _percent(each: Sequence[EntityScores], kind: str) -> str:
    """Over seeds; where nothing is there and nothing was found, nothing is right."""
    return beside([100 * (getattr(one, kind) or 0.0) for one in each])


def _told(item: Measured, each: Sequence[Mapping[str, EntityScores]]) -> dict[str, Any]:
    by_seed = [{name or "all": asdict(one) for name, one in seed.items()} for seed in each]
    return {"set": item.cell.column, "trained": item.cell.row, "f1_by_seed": by_seed}
