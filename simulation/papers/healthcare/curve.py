"""Perplexity by samples seen, together and in one place: the healthcare paper's figure 2."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edge_client.tables import Column, Table
from profiling.canvas import colour, heading, new_figure, plain, save
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import mean_and_spread
from simulation.papers.healthcare.perplexity import POOLED, SKEWED, TOGETHER, beside, notes
from simulation.papers.healthcare.setting import (
    Scale,
    central,
    drawn_per_round,
    federated,
    sizes_of,
)
from simulation.papers.plots import draw, figures_of
from simulation.papers.published.healthcare import CONVERGED
from simulation.papers.scenario import SUMMARY, Cell, Measured, Scenario

PICTURE = "perplexity.png"

Points = dict[int, list[float]]  # samples seen -> perplexity of all masked tokens, with each seed


def curve(base: str, adapter: str, scale: Scale, data: Path | None) -> Scenario:
    """The two runs of `perplexity` that see as many samples; it and this share their results.

    Args:
        base: A folder, or a hub name.
        adapter: What is trained: `full`, or an adapter.
        scale: How large.
        data: Folder of data sets.
    """
    together = federated(base, adapter, scale)
    sizes = sizes_of(together, data)
    cells = (
        Cell(TOGETHER, SKEWED, together),
        Cell(POOLED, SKEWED, central(together, sizes)),
    )
    title = "Silos of nine languages, by samples seen: accuracy of masked tokens in %"
    return Scenario("healthcare curve", title, cells, notes(together, sizes))


def points_of(item: Measured, sizes: Mapping[str, int]) -> Points:
    """Where an experiment was judged, and what came out.

    Args:
        item: Of the scenario.
        sizes: Texts of each silo.
    """
    per_round, found = _samples(item.cell.experiment, sizes), Points()
    for result in item.results:
        for index, score in result.curve():
            if score.loss is not None:
                found.setdefault(index * per_round, []).append(math.exp(score.loss))
    return found


def _samples(asked: Experiment, sizes: Mapping[str, int]) -> int:
    if asked.paradigm == "centralised":
        return asked.training.samples_of(sum(sizes.values()))
    return drawn_per_round(asked, sizes)


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
        [f"{samples:,}", *(beside(points.get(samples, [])) for points in curves.values())]
        for samples in seen
    ]
    printed = ", ".join(f"{name} {figure}" for name, figure in CONVERGED.items())
    one = next(iter(CONVERGED.values()))
    note = (
        "of the masked tokens of all test texts together, languages by their tokens; published "
        f"({one.paper.name}, {one.table}): {printed} after about 10 % of its texts"
    )
    columns = [Column("samples seen"), *(Column(name) for name in curves)]
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
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axis.fill_between(list(points), low, high, color=colour(number), alpha=0.15, linewidth=0)
    axis.set(xlabel="samples seen", ylabel="perplexity", yscale="log", xlim=(0, None))
    heading(axis, "test texts of all languages: mean over seeds, the band is ± its spread")
    axis.legend(frameon=False)
    plain([axis])
    return [*draw(found, folder, title), save(figure, folder / PICTURE)]
