"""A scenario: a grid of named experiments over seeds, with the published figures beside ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smidgen.edge_client.tables import Column, Table, seconds, share, sizes
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.record import Result, Row, mean_and_spread

SENTENCE = "a sentence, which does not say of which base and data but where it is told"


@dataclass(frozen=True)
class Figure:
    """One printed number.

    Attributes:
        value: In `unit`.
        unit: Such as `%`, `GB` or `parameters`.
        paper: Name of the paper that prints it.
        table: Such as `table 2`, or the section of a figure that stands in a sentence.
        row: The row's name as printed; of a sentence, what the number is.
        column: The column's name as printed; empty of a sentence.
        setting: What the paper says about how it was made.
        runs: Runs that it is the mean of; 0 where it is counted, None where the paper does not say.
        spread: What it prints behind ±, in `unit`; None where it prints nothing.
        printed: The cell as it is printed, with all its digits; empty of a sentence.
        remark: What else has to be known, such as another reading of the cell.
    """

    value: float
    unit: str
    paper: str
    table: str
    row: str
    column: str = ""
    setting: str = SENTENCE
    runs: int | None = None
    spread: float | None = None
    printed: str = ""
    remark: str = ""

    def __str__(self) -> str:
        return self.printed or f"{self.value:,}"

    def to_json(self) -> dict[str, object]:
        """The number and where it stands, for machines."""
        names = ("value", "spread", "unit", "paper", "table", "row", "column", "runs", "remark")
        return {name: getattr(self, name) for name in names}


NAMED = "experiment"  # heading of the column that names a row
SUMMARY = "summary.json"
Ranks = Mapping[str, float]  # by module, as `layer.linear`
Name = tuple[str, str]  # a cell's row and column
LAYER_FORWARDS = (
    "k layer-forwards: thousands of texts read by one layer each, as the engines count them; "
    "a backward pass counts as two"
)


@dataclass(frozen=True)
class Cell:
    """One experiment of a scenario, to be run with every seed.

    Attributes:
        row: What the table's row is called, such as the method.
        column: What its column is called, such as the partition or the language.
        experiment: The experiment, with any seed.
        of_languages: Whether its figure is the mean of the languages' accuracies, not that of all
            texts together.
        published: The paper's accuracy for this cell in per cent, if it prints one.
        published_by_language: The same by language, where the paper has it.
        is_fixed: Whether its rounds are its own, whatever others are given.
        language: The one language whose accuracy its figure is; empty for all.
    """

    row: str
    column: str
    experiment: Experiment
    published: Figure | None = None
    of_languages: bool = False
    published_by_language: Mapping[str, Figure] = field(default_factory=dict)
    is_fixed: bool = False
    language: str = ""

    @property
    def name(self) -> Name:
        return self.row, self.column


@dataclass(frozen=True)
class Scenario:
    """A paper's experiment.

    Attributes:
        name: What is typed for it: `aug-fedprompt table2`.
        title: Above tables and pictures.
        cells: The grid, row by row.
        notes: Under the table: how this differs from the paper's setting.
        source: Where the published figures are from.
        pairs: Cells whose difference is told, the lower one second.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    source: str = ""
    pairs: tuple[tuple[Name, Name], ...] = ()

    @property
    def heading(self) -> str:
        """The title of its table, which says so where published figures stand in brackets."""
        is_beside = any(cell.published for cell in self.cells)
        return f"{self.title} [published]" if is_beside else self.title

    def lasting(self, rounds: int) -> "Scenario":
        """This scenario with that many rounds where something is trained; 0 changes nothing."""
        if not rounds:
            return self
        cells = [
            replace(cell, experiment=replace(cell.experiment, rounds=rounds))
            if cell.experiment.rounds and not cell.is_fixed
            else cell
            for cell in self.cells
        ]
        return replace(self, cells=tuple(cells), notes=(*self.notes, f"--rounds {rounds}"))

    def experiments(self, seeds: Sequence[int]) -> list[Experiment]:
        """Every cell's experiment with every seed (added to its own), cell by cell."""
        return [
            replace(
                cell.experiment,
                seed=cell.experiment.seed + seed,
                name=f"{cell.row}, {cell.column}, seed {cell.experiment.seed + seed}"[:200],
            )
            for cell in self.cells
            for seed in seeds
        ]


@dataclass(frozen=True)
class Measured:
    """A cell with its results, one per seed."""

    cell: Cell
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        return f"{self.cell.row}, {self.cell.column}"

    def by_seed(self) -> list[float]:
        """Each seed's accuracy: of all texts, the mean of languages, or one's, as the cell says."""
        if name := self.cell.language:
            return [one.final().by_language[name].share for one in self.results]
        is_mean = self.cell.of_languages
        return [one.mean_of_languages if is_mean else one.accuracy for one in self.results]

    def accuracy(self) -> tuple[float, float]:
        return mean_and_spread(self.by_seed())

    def by_language(self) -> dict[str, float]:
        """Mean over the seeds that have it, by language."""
        found = [result.final().by_language for result in self.results]
        return {
            name: mean_and_spread([one[name].share for one in found if name in one])[0]
            for name in sorted({name for one in found for name in one})
        }

    def curve(self) -> list[tuple[int, float, float]]:
        """(round, mean, spread) of the accuracy over seeds."""
        curves = [{n: one.accuracy for n, one in result.curve()} for result in self.results]
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        return [(index, *mean_and_spread([curve[index] for curve in curves])) for index in rounds]

    def failures(self) -> str:
        """Which client-rounds failed and why, or nothing."""
        found = [result.failures() for result in self.results]
        failed, asked = sum(one[0] for one in found), sum(one[1] for one in found)
        reason = next((one[2] for one in found if one[2]), "")
        return f"{self.name}: {failed} of {asked} client-rounds failed: {reason}" if failed else ""

    def total(self, name: str) -> float:
        """A figure's sum over all rounds, mean over seeds."""
        return mean_and_spread([result.total(name) for result in self.results])[0]


def trained_of(experiment: Experiment) -> str:
    personal = experiment.personal
    return experiment.adapter if personal is None else str(personal)


def measured(scenario: Scenario, seeds: Sequence[int], results: Sequence[Result]) -> list[Measured]:
    """Put results, in the order of `Scenario.experiments`, into their cells."""
    per_cell = [results[at : at + len(seeds)] for at in range(0, len(results), len(seeds))]
    return [
        Measured(cell, tuple(found)) for cell, found in zip(scenario.cells, per_cell, strict=True)
    ]


def rows_by_arm(item: Measured) -> dict[str, list[list[Row]]]:
    """Rows of each who trained one adapter, with each seed, by name."""
    found: dict[str, list[list[Row]]] = {}
    for result in item.results:
        for arm in dict.fromkeys(row.arm for row in result.rows):
            found.setdefault(arm, []).append([row for row in result.rows if row.arm == arm])
    return dict(sorted(found.items()))


def ranks_of(item: Measured) -> dict[str, dict[str, float]]:
    """Each client's rank of each module, mean over seeds; none where nobody has any to tell."""
    by_client = {
        name: ranks
        for name, by_seed in rows_by_arm(item).items()
        if (ranks := [row.ranks for rows in by_seed for row in rows if row.ranks])
    }
    return {
        name: {module: sum(one[module] for one in ranks) / len(ranks) for module in ranks[0]}
        for name, ranks in by_client.items()
    }


def modules_of(ranks: Mapping[str, Ranks]) -> list[str]:
    """Names of modules, layer by layer, in each as clients have them."""
    return sorted(next(iter(ranks.values())), key=lambda name: int(name.split(".")[0]))


def accuracy_table(scenario: Scenario, found: Sequence[Measured]) -> Table:
    """Rows and columns of the scenario, mean and spread, the published figure in brackets."""
    head, *rows = _grid(found)
    columns = [Column(NAMED, "text"), *(Column(name) for name in head[1:])]
    read = ["figures in %"]
    if any(len(item.results) > 1 for item in found):
        read.append("±: spread over seeds")
    if any(item.cell.published is not None for item in found):
        read.append("in brackets: published")
    return Table(columns, rows, scenario.heading, ["; ".join(read)], SUMMARY)


def markdown(scenario: Scenario, found: Sequence[Measured], more: Sequence[Table] = ()) -> str:
    """The accuracy table as Markdown, with the notes below; before it, the scenario's own tables.

    Args:
        scenario: What was run.
        found: Its cells with their results.
        more: Tables of its own.
    """
    own = [part for table in more for part in part_of_page(table)]
    head, *rows = _grid(found)
    notes = [f"- {note}" for note in scenario.notes]
    if scenario.source:
        notes.insert(0, f"- [published]: {scenario.source}")
    return "\n".join([*own, scenario.heading, "", *lines_of(head, rows), "", *notes]) + "\n"


def part_of_page(table: Table) -> list[str]:
    head = [column.name for column in table.columns]
    notes = [f"- {note}" for note in table.notes]
    return [table.title, "", *lines_of(head, table.rows), "", *notes, *([""] if notes else [])]


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _grid(found: Sequence[Measured]) -> list[list[str]]:
    columns = list(dict.fromkeys(item.cell.column for item in found))
    lines = [["", *columns]]
    for row in dict.fromkeys(item.cell.row for item in found):
        here = {item.cell.column: item for item in found if item.cell.row == row}
        lines.append([row, *(_text(here.get(column)) for column in columns)])
    return lines


def _text(item: Measured | None) -> str:
    if item is None:
        return "-"
    return beside(spread_text([100 * one for one in item.by_seed()]), item.cell.published)


def spread_text(values: Sequence[float]) -> str:
    """Mean and spread over seeds; `-` where there are none."""
    if not values:
        return "-"
    mean, spread = mean_and_spread(values)
    return f"{mean:.1f} ± {spread:.1f}" if len(values) > 1 else f"{mean:.1f}"


def languages_of(found: Sequence[Measured]) -> list[str]:
    return sorted({language for item in found for language in item.by_language()})


def language_table(found: Sequence[Measured]) -> Table | None:
    """Accuracy by language, one row per cell; None where no set names languages."""
    languages = languages_of(found)
    if len(languages) < 2:
        return None
    rows = []
    for item in found:
        shares = item.by_language()
        mean = sum(shares.values()) / len(shares) if shares else None
        values = [
            beside(share(shares.get(name)), item.cell.published_by_language.get(name))
            for name in languages
        ]
        means = item.cell.published if item.cell.published_by_language else None
        rows.append([item.name, *values, beside(share(mean), means)])
    columns = [Column(NAMED, "text"), *(Column(name) for name in [*languages, "mean"])]
    return Table(columns, rows, "accuracy by language (mean over seeds)", more=SUMMARY)


def beside(text: str, published: Figure | None) -> str:
    """Ours, and in brackets what the paper prints, if it does."""
    return text if published is None else f"{text} [{published}]"


def cost_table(found: Sequence[Measured]) -> Table:
    """What each cell cost over all its rounds, mean over seeds."""
    sent = sizes([item.total("bytes_up") for item in found])
    received = sizes([item.total("bytes_down") for item in found])
    rows = [
        [
            item.name,
            str(item.cell.experiment.rounds),
            up,
            down,
            f"{item.total('all_forwards') / 1e3:.1f}",
            seconds(item.total("train_s")),
        ]
        for item, up, down in zip(found, sent, received, strict=True)
    ]
    return Table(
        [
            Column(NAMED, "text"),
            *(Column(name) for name in ("rounds at most", "sent", "received", "k layer-forwards")),
            Column("training"),
        ],
        rows,
        "cost of a whole run (mean over seeds; all clients together)",
        [
            f"{LAYER_FORWARDS}; labelling's are among them",
            "sent, received: for training; what is fetched to label is left out",
            "training: seconds of the processes that trained, summed",
        ],
        SUMMARY,
    )


def summary(scenario: Scenario, seeds: Sequence[int], found: Sequence[Measured]) -> dict[str, Any]:
    return {
        "scenario": scenario.name,
        "seeds": list(seeds),
        "cells": [_plain(item) for item in found],
        "notes": list(scenario.notes),
        "published_source": scenario.source,
    }


def _what(cell: Cell) -> str:
    if cell.language:
        return f"of {cell.language}"
    return "mean of languages" if cell.of_languages else "of all test texts"


def _plain(item: Measured) -> dict[str, object]:
    mean, spread = item.accuracy()
    return {
        "row": item.cell.row,
        "column": item.cell.column,
        "accuracy": round(mean, 4),
        "accuracy_spread": round(spread, 4) if len(item.results) > 1 else None,
        "accuracy_is": _what(item.cell),
        "accuracy_by_seed": [round(one, 4) for one in item.by_seed()],
        "balanced_by_seed": [
            None if result.balanced is None else round(result.balanced, 4)
            for result in item.results
        ],
        "accuracy_by_language": {name: round(x, 4) for name, x in item.by_language().items()},
        "published_percent": item.cell.published.value if item.cell.published else None,
        "published": item.cell.published.to_json() if item.cell.published else None,
        "published_by_language": {
            name: figure.value for name, figure in item.cell.published_by_language.items()
        },
        "bytes_up": round(item.total("bytes_up")),
        "bytes_down": round(item.total("bytes_down")),
        "layer_forwards": round(item.total("all_forwards")),
        "rounds": item.cell.experiment.rounds,
        "train_seconds": round(item.total("train_s"), 1),
    }
