"""A partition as one picture: which client holds how many texts of which label (and language).

Up to 40 clients: one dot a client and label, its area the number of labelled texts, on a pale one
for the unlabelled. More: the labelled texts by client, the mixes of all, and their sizes, sorted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulation.population.clients import Population

MOST_DOT_CLIENTS = 40
MOST_BARS = 64
MOST_BANDS = 200
LARGEST_DOT, LARGEST_INNER_DOT = 420.0, 130.0  # points squared
LABELLED, UNLABELLED = "#b5442e", "#c9d8e8"


@dataclass(frozen=True)
class Counts:
    """How many texts each client holds of each kind.

    Attributes:
        kinds: Labels or languages, sorted.
        labelled: (clients, kinds), int64.
        unlabelled: The same of unlabelled texts.
    """

    kinds: tuple[str, ...]
    labelled: np.ndarray
    unlabelled: np.ndarray


def count(population: Population, values: Sequence[str]) -> Counts:
    """Count every client's training texts by a field.

    Args:
        population: Clients of a set of `len(values)` training texts.
        values: The field of each of them, such as its label.
    """
    kinds, codes = np.unique(np.array(values), return_inverse=True)
    labelled, unlabelled = (
        np.array([np.bincount(codes[held], minlength=len(kinds)) for held in part])
        for part in (
            [client.labelled for client in population],
            [client.unlabelled for client in population],
        )
    )
    return Counts(tuple(str(kind) for kind in kinds), labelled, unlabelled)


def draw_partition(
    population: Population, fields: Mapping[str, Sequence[str]], path: Path, title: str
) -> None:
    """Draw clients against the values of each field as a PNG.

    Args:
        population: The clients.
        fields: `label`, and where there are several `language` -> value of every training text.
        path: The PNG to write.
        title: Above the picture.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    tables = {field: count(population, values) for field, values in fields.items()}
    if len(population) <= MOST_DOT_CLIENTS:
        figure = _dots(pyplot, [client.name for client in population], tables)
    else:
        figure = _sorted(pyplot, tables)
    figure.suptitle(title, fontsize=11)
    figure.get_layout_engine().set(w_pad=0.1)
    figure.savefig(path, format="png", pil_kwargs={"optimize": True})
    pyplot.close(figure)


def _dots(pyplot: Any, names: Sequence[str], tables: Mapping[str, Counts]) -> Any:
    widths = [max(2.0, 0.75 * len(table.kinds)) for table in tables.values()]
    figure, axes = pyplot.subplots(
        1,
        len(tables) + 1,
        figsize=(sum(widths) + 4.2, 0.36 * len(names) + 1.9),
        dpi=110,
        width_ratios=[*widths, 2.2],
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axis, (field, table) in zip(axes[0], tables.items(), strict=False):
        _dot_panel(axis, field, table)
    _size_bars(axes[0][-1], next(iter(tables.values())))
    axes[0][0].set_yticks(np.arange(len(names)), names, fontsize=8)
    axes[0][0].set_ylim(len(names) - 0.4, -0.6)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    entries = axes[0][-1].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    return figure


def _dot_panel(axis: Any, field: str, table: Counts) -> None:
    kinds = len(table.kinds)
    columns, rows = np.meshgrid(np.arange(kinds), np.arange(len(table.labelled)))
    inner = LARGEST_INNER_DOT if table.unlabelled.any() else LARGEST_DOT
    layers = ((table.unlabelled, UNLABELLED, LARGEST_DOT), (table.labelled, LABELLED, inner))
    for counts, colour, largest in layers:
        areas = largest * counts / max(1, counts.max())
        axis.scatter(columns, rows, s=areas, color=colour, linewidths=0)
    for row, column in zip(*np.nonzero(table.labelled), strict=True):
        axis.annotate(
            f"{table.labelled[row, column]:,}",
            (column, row),
            xytext=(12, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
            color=LABELLED,
        )
    axis.set_xticks(np.arange(kinds), table.kinds, fontsize=8, rotation=30 if kinds > 6 else 0)
    axis.set(xlim=(-0.6, kinds - 0.3), xlabel=field)
    axis.tick_params(length=0)


def _size_bars(axis: Any, table: Counts) -> None:
    known, unknown = table.labelled.sum(axis=1), table.unlabelled.sum(axis=1)
    rows = np.arange(len(known))
    axis.barh(rows, known, color=LABELLED, height=0.5, label="labelled (number beside the dot)")
    if unknown.any():
        label = f"unlabelled (largest dot: {table.unlabelled.max():,})"
        axis.barh(rows, unknown, left=known, color=UNLABELLED, height=0.5, label=label)
    axis.set_xlabel("texts")
    axis.locator_params(axis="x", nbins=4)
    axis.tick_params(axis="x", labelsize=8)


def _sorted(pyplot: Any, tables: Mapping[str, Counts]) -> Any:
    figure, axes = pyplot.subplots(
        len(tables),
        3,
        figsize=(12.5, 3.9 * len(tables) + 0.5),
        dpi=100,
        layout="constrained",
        squeeze=False,
        width_ratios=[4, 3, 3],
    )
    for (left, middle, right), (field, table) in zip(axes, tables.items(), strict=True):
        colours = pyplot.get_cmap("tab10" if len(table.kinds) <= 10 else "tab20").colors
        _labelled_bars(left, field, table, colours)
        shades = _mix_bands(middle, field, table)
        figure.colorbar(shades, ax=middle, shrink=0.7).ax.tick_params(labelsize=8)
        left.spines[["top", "right"]].set_visible(False)
        right.remove()
    _size_curve(figure.add_subplot(axes[0][2].get_gridspec()[0, 2]), next(iter(tables.values())))
    return figure


def _labelled_bars(axis: Any, field: str, table: Counts, colours: Sequence[Any]) -> None:
    """Stacked bars, the clients with most labelled texts first."""
    sizes = table.labelled.sum(axis=1)
    holders = int(np.count_nonzero(sizes))
    shown = table.labelled[np.argsort(-sizes, kind="stable")[: min(holders, MOST_BARS)]]
    floor = np.zeros(len(shown), np.int64)
    for kind, counts, colour in zip(table.kinds, shown.T, colours, strict=False):
        axis.bar(np.arange(len(shown)) + 1, counts, 0.9, bottom=floor, color=colour, label=kind)
        floor += counts
    more = f", the first {MOST_BARS} of {holders:,}" if holders > MOST_BARS else ""
    axis.set(
        xlabel=f"clients with labelled texts, most first{more}",
        ylabel="labelled texts",
        title=f"{sizes.sum():,} labelled texts on {holders:,} clients",
    )
    axis.title.set_fontsize(9)
    axis.set(xlim=(0.4, len(shown) + 0.6), ylim=(0, 1.05 * floor.max(initial=1)))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.legend(title=field, fontsize=7, title_fontsize=8, ncols=2 if len(table.kinds) > 7 else 1)


def _mix_bands(axis: Any, field: str, table: Counts) -> Any:
    """Each client's shares of the kinds, clients sorted by the kind they hold most of."""
    held = table.labelled + table.unlabelled
    held = held[held.sum(axis=1) > 0]
    shares = held / held.sum(axis=1, keepdims=True)
    most = shares.argmax(axis=1)
    ordered = shares[np.lexsort((-shares.max(axis=1), most))]
    bands = np.array_split(ordered, min(len(ordered), MOST_BANDS))
    image = axis.imshow(
        np.array([band.mean(axis=0) for band in bands]),
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(-0.5, len(table.kinds) - 0.5, len(ordered), 0),
    )
    rotation = 40 if len(table.kinds) > 5 else 0
    axis.set_xticks(np.arange(len(table.kinds)), table.kinds, fontsize=8, rotation=rotation)
    axis.set_ylabel("clients, sorted")
    axis.set_title(f"share of each {field} among a client's texts", fontsize=9)
    return image


def _size_curve(axis: Any, table: Counts) -> None:
    sizes = np.sort((table.labelled + table.unlabelled).sum(axis=1))[::-1]
    axis.stairs(sizes, np.arange(len(sizes) + 1), fill=True, color=UNLABELLED)
    axis.set(xlabel="clients, largest first", ylabel="texts", xlim=(0, len(sizes)))
    axis.set_ylim(bottom=0)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_title(f"{sizes.sum():,} texts on {len(sizes):,} clients", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
