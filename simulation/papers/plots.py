"""Experiments as pictures: accuracy by round, by language and by client, and what it cost."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.papers.scenario import Measured, languages_of

COLOURS = ("#2e7d6b", "#d1603d", "#4b6cb7", "#e0b04c", "#8e6bb0", "#5f6b76", "#a8455b", "#3f9cb5")


def draw(found: Sequence[Measured], folder: Path, title: str) -> list[Path]:
    """Write `accuracy.png` and, where there is something to show, `languages.png`, `clients.png`.

    Args:
        found: Cells with their results.
        folder: Made where it is not there.
        title: Above each picture.

    Returns:
        What was written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = [_accuracy(found, folder / "accuracy.png", title)]
    if len(languages_of(found)) > 1:
        written.append(_languages(found, folder / "languages.png", title))
    shares = {item.name: _by_client(item) for item in found}
    if any(len(clients) > 1 for clients in shares.values()):
        written.append(_clients(shares, folder / "clients.png", title))
    return written


def _accuracy(found: Sequence[Measured], path: Path, title: str) -> Path:
    """Draw accuracy over three costs: rounds, bytes and layer-forwards."""
    figure, axes = _axes(3, title)
    trained = [item for item in found if item.cell.experiment.rounds]
    for item in found:
        if item not in trained:
            for axis in axes:
                level = 100 * item.accuracy()[0]
                axis.axhline(level, color="#5f6b76", linestyle=":", linewidth=1)
            axes[0].annotate(item.cell.row, (0, level), fontsize=8, va="bottom")
    for number, item in enumerate(trained):
        colour = COLOURS[number % len(COLOURS)]
        style = "-" if number < len(COLOURS) else "--"
        curve = item.curve()
        mean = [100 * value for _, value, _ in curve]
        spread = [100 * value for _, _, value in curve]
        low = [a - b for a, b in zip(mean, spread, strict=True)]
        high = [a + b for a, b in zip(mean, spread, strict=True)]
        rounds = [index for index, _, _ in curve]
        axes[0].plot(rounds, mean, style, color=colour, label=item.name, marker=".")
        axes[0].fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        for axis, name, unit in ((axes[1], "bytes_up", 1e6), (axes[2], "layer_forwards", 1e3)):
            spent = [_spent(item, name, index) / unit for index in rounds]
            axis.plot(spent, mean, style, color=colour, marker=".")
    axes[0].set(xlabel="round", ylabel="accuracy, % (mean, spread over seeds)")
    axes[1].set(xlabel="MB up, all clients together (measured)")
    axes[2].set(xlabel="thousand layer-forwards of training (formula)")
    if trained:
        figure.legend(loc="lower center", ncols=4, fontsize=8, frameon=False)
    rows = -(-len(trained) // 4)
    figure.tight_layout(rect=(0, 0.06 * rows, 1, 1))
    return _save(figure, path)


def _spent(item: Measured, name: str, round_index: int) -> float:
    """Spent up to a round, mean over seeds."""
    sums = [
        sum(getattr(row, name) for row in result.rows if row.round_index <= round_index)
        for result in item.results
    ]
    return float(sum(sums)) / len(sums)


def _languages(found: Sequence[Measured], path: Path, title: str) -> Path:
    figure, [axis] = _axes(1, title)
    languages = languages_of(found)
    width = 0.8 / len(found)
    for number, item in enumerate(found):
        shares = item.by_language()
        places = [
            place + width * (number - (len(found) - 1) / 2) for place in range(len(languages))
        ]
        heights = [100 * shares.get(language, math.nan) for language in languages]
        colour = COLOURS[number % len(COLOURS)]
        axis.bar(places, heights, width, color=colour, label=item.name)
    axis.set_xticks(range(len(languages)), languages)
    axis.set(ylabel="accuracy, % (mean over seeds)")
    axis.legend(fontsize=8, frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))
    figure.tight_layout()
    return _save(figure, path)


def _clients(shares: dict[str, list[float]], path: Path, title: str) -> Path:
    """Every client's accuracy as a point, sorted: how evenly a method serves them."""
    figure, [axis] = _axes(1, title)
    for number, (name, values) in enumerate(shares.items()):
        if len(values) > 1:
            places = [index / (len(values) - 1) for index in range(len(values))]
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(
                places, [100 * share for share in sorted(values)], ".-", color=colour, label=name
            )
    axis.set(xlabel="clients, worst to best", ylabel="accuracy on a client's own test texts, %")
    axis.set_xticks([])
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    return _save(figure, path)


def _by_client(item: Measured) -> list[float]:
    """Accuracies of all clients in the end, all seeds together."""
    return [tally.share for result in item.results for tally in result.final().by_client.values()]


def _axes(count: int, title: str) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot

    width = {1: 9, 3: 13}[count]
    figure, axes = pyplot.subplots(1, count, figsize=(width, 4.4), dpi=110, sharey=True)
    found = [axes] if count == 1 else list(axes)
    for axis in found:
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure, found


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path)
    pyplot.close(figure)
    return path
