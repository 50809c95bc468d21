"""Charts of experiments: accuracy by round and by cost, by language, and by client.

A cell has the same colour in all of them. Every accuracy axis runs from 0 to 100.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.edge_client.personal.interpolation import ALPHAS
from smidgen.profiling.canvas import (
    INK,
    PALE,
    SMALL,
    accuracy_axis,
    colour,
    heading,
    new_figure,
    plain,
    rounds_axis,
    save,
    whole_numbers,
)
from smidgen.simulation.report.scenario import (
    Measured,
    Ranks,
    languages_of,
    modules_of,
    ranks_of,
    trained_of,
)

PICTURES = ("accuracy.png", "languages.png", "clients.png", "ranks.png", "alphas.png")
DASHES = (":", "--", "-.")
MOST_NAMES = 8  # clients whose names fit side by side below their bars
PANEL = 3.4  # inches, of each side
LONGEST_LINE = 90  # characters of a title


def draw(found: Sequence[Measured], folder: Path, title: str) -> list[Path]:
    """Write `accuracy.png` and, where there is something to show, the others of `PICTURES`.

    Clients that train for themselves are scored once: of them there is no accuracy by round.

    Args:
        found: Cells with their results.
        folder: Made where it is not there.
        title: The first line of each picture; what the figures are of is added below it.

    Returns:
        What was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{title}\n{textwrap.fill(figures_of(found), LONGEST_LINE)}"
    pictures = {}
    if all(item.cell.experiment.personal is None for item in found):
        pictures["accuracy.png"] = accuracy_figure(found, title)
    if len(languages_of(found)) > 1:
        pictures["languages.png"] = languages_figure(found, title)
    # Where clients are the languages, their bars are those of the languages.
    if any(len(known := {*clients_of(one)}) > 1 and known != {*one.by_language()} for one in found):
        pictures["clients.png"] = clients_figure(found, title)
    if any(is_choice(ranks_of(item)) for item in found):
        told = title.replace("accuracy in %", "ranks that were kept")
        pictures["ranks.png"] = ranks_figure(found, told)
    if any(shares_of(item) for item in found):
        pictures["alphas.png"] = alphas_figure(found, title)
    for name in PICTURES:
        if name not in pictures:
            (folder / name).unlink(missing_ok=True)  # of an earlier call, about something else
    return [save(figure, folder / name) for name, figure in pictures.items()]


def figures_of(found: Sequence[Measured]) -> str:
    """Data, base, adapters, rounds and seeds that the pictures are of, in one line."""
    asked = [item.cell.experiment for item in found]
    trained = [experiment for experiment in asked if experiment.is_trained]
    parts = (
        ", ".join(dict.fromkeys(experiment.dataset for experiment in asked)),
        "base " + ", ".join(dict.fromkeys(Path(experiment.base).name for experiment in asked)),
        ", ".join(dict.fromkeys(map(trained_of, trained))) or "nothing trained",
        seeds_of(found),
    )
    return "; ".join(parts)


def seeds_of(found: Sequence[Measured]) -> str:
    most = max(len(item.results) for item in found)
    return "one seed" if most == 1 else f"{most} seeds"


def names_of(found: Sequence[Measured]) -> dict[str, str]:
    """What each cell is called in a legend: its row alone where that is enough."""
    rows = [item.cell.row for item in found]
    is_enough = len(set(rows)) == len(rows)
    return {item.name: item.cell.row if is_enough else item.name for item in found}


def costs_of(trained: Sequence[Measured]) -> list[tuple[str, float, str]]:
    """The costs by which curves differ: others give the same picture as the rounds."""
    found = []
    for cost in (
        ("bytes_up", 1 << 20, "MiB up, all clients together (measured)"),
        ("all_forwards", 1e3, "thousand layer-forwards (counted)"),
    ):
        spent = [total for item in trained if (total := item.total(cost[0])) > 0]
        if len(spent) > 1 and max(spent) > 1.05 * min(spent):
            found.append(cost)
    return found


def legend_outside(figure: Any, axes: Any, width: float) -> None:
    """A legend of one panel's curves or bars, below all panels.

    Args:
        figure: The picture.
        axes: The panel.
        width: The picture's, inches.
    """
    handles, names = axes.get_legend_handles_labels()
    longest = max((len(name) for name in names), default=1)
    columns = max(1, min(len(names), int(width / (0.5 + 0.07 * longest))))
    place = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, names, **place, fontsize=SMALL, frameon=False)


def colours_of(found: Sequence[Measured]) -> dict[str, str]:
    """Each trained cell's colour, the same in every picture; what is not trained is grey."""
    trained = [item.name for item in found if item.cell.experiment.is_trained]
    return {item.name: INK for item in found} | {
        name: colour(number) for number, name in enumerate(trained)
    }


def accuracy_figure(found: Sequence[Measured], title: str) -> Any:
    """Accuracy by round; by cost too, where there are several curves to compare."""
    trained = [item for item in found if item.cell.experiment.rounds]
    costs, names = costs_of(trained), names_of(found)
    width = 6.4 + 3.6 * len(costs)
    figure = new_figure(width, 4.2 + 0.1 * len(found), title)
    axes = figure.subplots(1, 1 + len(costs), sharey=True, squeeze=False)[0]
    colours, has_spread = colours_of(found), False
    for item in trained:
        curve = item.curve()
        rounds = [index for index, _, _ in curve]
        mean, spread = ([100 * point[at] for point in curve] for at in (1, 2))
        style = {"color": colours[item.name], "marker": ".", "label": names[item.name]}
        axes[0].plot(rounds, mean, **style)
        if len(item.results) > 1:
            has_spread = True
            band(axes[0], rounds, mean, spread, colours[item.name])
        for axis, (name, unit, _) in zip(axes[1:], costs, strict=True):
            if not item.total(name):
                continue
            axis.plot([_spent(item, name, index) / unit for index in rounds], mean, **style)
    untrained = [item for item in found if item not in trained]
    for number, item in enumerate(untrained):
        level = 100 * item.accuracy()[0]
        dashes = {"linestyle": DASHES[number % len(DASHES)], "linewidth": 1.2}
        for axis in axes:
            axis.axhline(level, color=INK, label=names[item.name], **dashes)
    accuracy_axis(axes[0])
    told = ": mean over seeds, the band is ± its spread" if has_spread else ""
    heading(axes[0], f"accuracy on the test texts{told}")
    rounds_axis(axes[0], max((item.cell.experiment.rounds for item in found), default=0))
    for axis, (_, _, label) in zip(axes[1:], costs, strict=True):
        axis.set(xlabel=label, xlim=(0, None))
    plain(axes)
    legend_outside(figure, axes[0], width)
    return figure


def band(axis: Any, places: Sequence[float], means: Any, spreads: Any, shade: str) -> None:
    """Means plus and minus their spreads, in a pale colour below a curve."""
    low, high = (np.add(means, sign * np.array(spreads)) for sign in (-1, 1))
    axis.fill_between(places, low, high, color=shade, alpha=0.15, linewidth=0)


def _spent(item: Measured, name: str, round_index: int) -> float:
    """Spent up to a round, mean over seeds."""
    sums = [
        sum(getattr(row, name) for row in result.rows if row.round_index <= round_index)
        for result in item.results
    ]
    return float(sum(sums)) / len(sums)


def languages_figure(found: Sequence[Measured], title: str) -> Any:
    """Bars of every cell, language by language."""
    languages, colours, names = languages_of(found), colours_of(found), names_of(found)
    across = max(7.0, 0.9 * len(languages) + 2)
    figure = new_figure(across, 4.0 + 0.1 * len(found), title)
    axis = figure.subplots()
    width = 0.8 / len(found)
    for number, item in enumerate(found):
        shares = item.by_language()
        offset = width * (number - (len(found) - 1) / 2)
        heights = [100 * shares.get(language, math.nan) for language in languages]
        places = [place + offset for place in range(len(languages))]
        axis.bar(places, heights, width, color=colours[item.name], label=names[item.name])
    axis.set_xticks(range(len(languages)), languages)
    axis.set_xlabel("language of the test texts")
    accuracy_axis(axis)
    plain([axis])
    legend_outside(figure, axis, across)
    return figure


def clients_of(item: Measured) -> dict[str, float]:
    """Accuracy of every client in the end on its own test texts.

    Clients that own a language are the same in every seed, and are told by name, as means over the
    seeds. Others are not: they are told by rank, from the worst of each seed to the best.
    """
    seeds = [result.final().by_client for result in item.results]
    if item.cell.experiment.deal.by:
        names = [name for name in seeds[0] if all(name in one for one in seeds)]
        return {name: sum(one[name].share for one in seeds) / len(seeds) for name in names}
    ranked = [sorted(tally.share for tally in one.values()) for one in seeds]
    places = range(min(map(len, ranked)))
    return {str(at + 1): sum(one[at] for one in ranked) / len(ranked) for at in places}


def clients_figure(found: Sequence[Measured], title: str) -> Any:
    """One panel per cell, one bar per client."""
    shown = [(item, clients) for item in found if len(clients := clients_of(item)) > 1]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(max(6.0, 4.0 * columns), 2.6 * rows + 1.0, title)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    colours = colours_of(found)
    for number, (axis, (item, clients)) in enumerate(zip(panels, shown, strict=False)):
        places = range(1, len(clients) + 1)
        heights = [100 * share for share in clients.values()]
        axis.bar(places, heights, 0.8, color=colours[item.name])
        _name_clients(axis, item, list(clients))
        accuracy_axis(axis)
        heading(axis, names_of(found)[item.name])
        if number % columns:
            axis.set_ylabel("")
    for empty in panels[len(shown) :]:
        empty.remove()
    plain([axis for axis, _ in zip(panels, shown, strict=False)])
    return figure


def _name_clients(axis: Any, item: Measured, names: list[str]) -> None:
    """What stands below the bars: names where clients have some, else ranks."""
    many = f"; mean of {seeds_of([item])}" if len(item.results) > 1 else ""
    if item.cell.experiment.deal.by:
        upright = {"rotation": 90} if len(names) > MOST_NAMES else {}
        axis.set_xticks(range(1, len(names) + 1), names, **upright)
        axis.set_xlabel(f"client, on its own test texts{many}")
    else:
        whole_numbers(axis.xaxis)
        axis.set_xlabel(f"client from worst to best, on its own test texts{many}")
    axis.set_xlim(0.4, len(names) + 0.6)


def is_choice(ranks: Mapping[str, Ranks]) -> bool:
    """Whether any client has other ranks in one module than in another."""
    return any(len(set(one.values())) > 1 for one in ranks.values())


def ranks_figure(found: Sequence[Measured], title: str) -> Any:
    """One panel for each cell in which ranks were chosen: clients by modules.

    Args:
        found: At least one of them with such ranks.
        title: The first line of the picture.
    """
    shown = [(item, ranks) for item in found if is_choice(ranks := ranks_of(item))]
    modules = modules_of(shown[0][1])
    height = sum(0.8 + 0.17 * len(ranks) for _, ranks in shown)
    figure = new_figure(max(6.4, 0.28 * len(modules) + 2), height + 1.2, title)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axis, (item, ranks) in zip(panels, shown, strict=True):
        values = [[one[module] for module in modules] for one in ranks.values()]
        image = axis.imshow(values, aspect="auto", cmap="Greens", vmin=0)
        figure.colorbar(image, ax=axis, pad=0.01).ax.tick_params(labelsize=SMALL)
        axis.set_yticks(range(len(ranks)), list(ranks))
        axis.set_xticks(range(len(modules)), modules, rotation=90)
        many = ": mean over seeds" if len(item.results) > 1 else ""
        heading(axis, f"{item.cell.row}, {item.cell.column}, ranks by layer.linear{many}")
    plain(list(panels))
    return figure


def shares_of(item: Measured) -> dict[str, np.ndarray]:
    """Each client's shares of right answers in per cent, seeds by alphas; none where none went."""
    found: dict[str, list[np.ndarray]] = {}
    for result in item.results:
        for row in result.rows:
            if row.between is not None and row.score is not None:
                right = np.array(row.between.right)
                found.setdefault(row.arm, []).append(100.0 * right / row.score.total.asked)
    return {name: np.array(one) for name, one in sorted(found.items())}


def alphas_figure(found: Sequence[Measured], title: str) -> Any:
    """A panel for each cell whose clients went that way: their mean, and each of them in pale.

    Args:
        found: At least one of them with such clients.
        title: The first line of the picture.
    """
    shown = [(item, shares) for item in found if (shares := shares_of(item))]
    figure = new_figure(max(6.4, PANEL * len(shown)), PANEL + 1.2, title)
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for number, (axis, (item, shares)) in enumerate(zip(panels, shown, strict=True)):
        for one in shares.values():
            axis.plot(ALPHAS, one.mean(axis=0), color=PALE, linewidth=1.0)
        means = np.mean(list(shares.values()), axis=0)  # of clients, seeds by alphas
        middle, spread = means.mean(axis=0), np.std(means, axis=0, ddof=min(1, len(means) - 1))
        band(axis, ALPHAS, middle, spread, colour(number))
        axis.plot(ALPHAS, middle, color=colour(number), linewidth=2.0)
        heading(axis, item.cell.row)
        axis.set(xlabel="alpha; 0: shared, 1: own", xlim=(0, 1))
        accuracy_axis(axis)
    told = "pale: each client's mean over seeds; bold: their mean; band: its spread over seeds"
    figure.supxlabel(told, fontsize=SMALL)
    plain(list(panels))
    return figure
