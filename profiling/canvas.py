"""Shared style of all charts: colours, accuracy axes from 0 to 100 %, legends outside the data.

Matplotlib is imported where a chart is drawn, since few commands draw one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# One colour per named thing, in the order in which it is first named.
PALETTE = (
    *("#2e7d6b", "#d1603d", "#4b6cb7", "#e0b04c", "#8e6bb0"),
    *("#a8455b", "#3f9cb5", "#8d9f4f", "#5b4a3f", "#d58fb5"),
)
INK, PALE = "#5f6b76", "#c9d8e8"
SMALL = 8  # points


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def new_figure(width: float, height: float, title: str) -> Any:
    """An empty figure with a title, whose parts make room for each other.

    Args:
        width: Inches.
        height: Inches.
        title: Its first line is large, what follows it small.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    room = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(width, height), dpi=110, layout=room)
    figure.suptitle(title, fontsize=10)
    return figure


def plain(axes: Sequence[Any]) -> None:
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=SMALL)
        for name in (axis.xaxis.label, axis.yaxis.label):
            name.set_size(SMALL + 1)


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def rounds_axis(axes: Any, last: int) -> None:
    axes.set(xlabel="round", xlim=(-0.6, last + 0.6))
    whole_numbers(axes.xaxis)


def accuracy_axis(axes: Any) -> None:
    axes.set(ylabel="accuracy, %", ylim=(0, 100))


def say(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", fontsize=SMALL, color=INK)


def heading(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=SMALL + 1)


def legend_below(axes: Any, columns: int) -> None:
    """A legend under the x axis, where no data is; none where nothing is named."""
    if axes.get_legend_handles_labels()[1]:
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        axes.legend(**place, ncols=columns, fontsize=SMALL, frameon=False)


def save(figure: Any, path: Path) -> Path:
    kind = path.suffix.removeprefix(".").lower()
    if kind in figure.canvas.get_supported_filetypes() and kind != "png":
        figure.savefig(path, format=kind)
    else:
        figure.savefig(path, format="png", pil_kwargs={"optimize": True})
    return path
