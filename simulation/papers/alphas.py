"""Accuracy along the way from the shared adapter to one's own, as a picture: alpha from 0 to 1."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_client.personal.interpolation import ALPHAS
from profiling.canvas import PALE, SMALL, accuracy_axis, colour, heading, new_figure, plain
from simulation.papers.scenario import Measured

PANEL = 3.4  # inches, of each side


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
        axis.fill_between(ALPHAS, middle - spread, middle + spread, color=colour(number), alpha=0.2)
        axis.plot(ALPHAS, middle, color=colour(number), linewidth=2.0)
        heading(axis, item.cell.row)
        axis.set(xlabel="alpha; 0: shared, 1: own", xlim=(0, 1))
        accuracy_axis(axis)
    told = "pale: each client's mean over seeds; bold: their mean; band: its spread over seeds"
    figure.supxlabel(told, fontsize=SMALL)
    plain(list(panels))
    return figure
