"""Chart of a partition: how many texts of which label (and language) each client holds.

Up to 40 clients: one dot per client and label, with an area by the labelled texts, on a pale one
for unlabelled texts. More clients: labelled texts by client, all clients' mixes, and their sorted
sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.profiling.canvas import (
    PALE,
    PALETTE,
    SMALL,
    colour,
    new_figure,
    plain,
    save,
    whole_numbers,
)
from smidgen.simulation.population.clients import Population

MOST_DOT_CLIENTS = 40
MOST_BARS = 64
MOST_BANDS = 200
LARGEST_DOT, LARGEST_INNER_DOT = 420.0, 130.0  # points squared
LABELLED, UNLABELLED = PALETTE[1], PALE


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
    save(partition_figure(population, fields, title), path)


def partition_figure(
    population: Population, fields: Mapping[str, Sequence[str]], title: str
) -> Any:
    tables = {field: count(population, values) for field, values in fields.items()}
    if len(population) <= MOST_DOT_CLIENTS:
        return _dots([client.name for client in population], tables, title)
    return _sorted(tables, title)


def _dots(names: Sequence[str], tables: Mapping[str, Counts], title: str) -> Any:
    widths = [max(2.0, 0.75 * len(table.kinds)) for table in tables.values()]
    figure = new_figure(sum(widths) + 4.2, 0.36 * len(names) + 1.9, title)
    axes = figure.subplots(
        1, len(tables) + 1, width_ratios=[*widths, 2.2], sharey=True, squeeze=False
    )
    for axis, (field, table) in zip(axes[0], tables.items(), strict=False):
        _dot_panel(axis, field, table)
    _size_bars(axes[0][-1], next(iter(tables.values())))
    axes[0][0].set_yticks(np.arange(len(names)), names, fontsize=8)
    axes[0][0].set_ylim(len(names) - 0.4, -0.6)
    axes[0][0].set_ylabel("client")
    plain(axes[0])
    for axis in axes[0]:
        axis.tick_params(axis="y", length=0)
    entries = axes[0][-1].get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    return figure


def _dot_panel(axis: Any, field: str, table: Counts) -> None:
    kinds = len(table.kinds)
    columns, rows = np.meshgrid(np.arange(kinds), np.arange(len(table.labelled)))
    inner = LARGEST_INNER_DOT if table.unlabelled.any() else LARGEST_DOT
    layers = ((table.unlabelled, UNLABELLED, LARGEST_DOT), (table.labelled, LABELLED, inner))
    for counts, shade, largest in layers:
        areas = largest * counts / max(1, counts.max())
        axis.scatter(columns, rows, s=areas, color=shade, linewidths=0)
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
    _name_kinds(axis, table.kinds, is_slanted=kinds > 6)
    axis.set(xlim=(-0.6, kinds - 0.3), xlabel=field)
    axis.tick_params(length=0)


def _name_kinds(axis: Any, kinds: Sequence[str], is_slanted: bool) -> None:
    """Labels or languages below their columns; many of them slanted, each ending at its own."""
    slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
    axis.set_xticks(np.arange(len(kinds)), kinds, fontsize=SMALL, **slant)


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


def _sorted(tables: Mapping[str, Counts], title: str) -> Any:
    figure = new_figure(12.5, 4.2 * len(tables) + 0.7, title)
    axes = figure.subplots(len(tables), 3, squeeze=False, width_ratios=[4, 3, 3])
    first = 0
    for (left, middle, right), (field, table) in zip(axes, tables.items(), strict=True):
        _labelled_bars(left, field, table, first)
        shades = _mix_bands(middle, field, table)
        bar = figure.colorbar(shades, ax=middle, shrink=0.7)
        bar.ax.tick_params(labelsize=SMALL)
        bar.set_label("share", fontsize=SMALL)
        plain([left])
        right.remove()
        first += len(table.kinds)
    _size_curve(figure.add_subplot(axes[0][2].get_gridspec()[0, 2]), next(iter(tables.values())))
    return figure


def _labelled_bars(axis: Any, field: str, table: Counts, first: int) -> None:
    """Stacked bars, the clients with most labelled texts first.

    Args:
        axis: Where.
        field: Such as `label`.
        table: Counts of its kinds.
        first: Number of the first kind's colour: no colour means two things while they last.
    """
    sizes = table.labelled.sum(axis=1)
    holders = int(np.count_nonzero(sizes))
    shown = table.labelled[np.argsort(-sizes, kind="stable")[: min(holders, MOST_BARS)]]
    floor = np.zeros(len(shown), np.int64)
    for number, (kind, counts) in enumerate(zip(table.kinds, shown.T, strict=True), start=first):
        hatch = "//" if number // len(PALETTE) % 2 else ""  # where colours begin again
        shade = {"color": colour(number), "hatch": hatch, "edgecolor": "white"}
        places = np.arange(len(shown)) + 1
        axis.bar(places, counts, 0.9, bottom=floor, label=kind, linewidth=0, **shade)
        floor += counts
    more = f", the first {MOST_BARS} of {holders:,}" if holders > MOST_BARS else ""
    axis.set(
        xlabel=f"clients with labelled texts, most first{more}",
        ylabel="labelled texts",
        title=f"{sizes.sum():,} labelled texts on {holders:,} clients",
    )
    axis.title.set_fontsize(9)
    axis.set(xlim=(0.4, len(shown) + 0.6), ylim=(0, 1.05 * floor.max(initial=1)))
    whole_numbers(axis.xaxis)
    whole_numbers(axis.yaxis)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "frameon": False}
    longest = max(len(kind) for kind in table.kinds)
    columns = max(1, min(len(table.kinds), 60 // (longest + 6)))
    axis.legend(**place, title=field, ncols=columns, fontsize=7, title_fontsize=SMALL)


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
    _name_kinds(axis, table.kinds, is_slanted=len(table.kinds) > 5)
    axis.set_ylabel(f"clients, by their commonest {field}", fontsize=SMALL + 1)
    axis.tick_params(labelsize=SMALL)
    axis.set_title(f"share of each {field} among a client's texts", fontsize=9)
    return image


def _size_curve(axis: Any, table: Counts) -> None:
    sizes = np.sort((table.labelled + table.unlabelled).sum(axis=1))[::-1]
    axis.stairs(sizes, np.arange(len(sizes) + 1), fill=True, color=UNLABELLED)
    axis.set(xlabel="clients, largest first", ylabel="texts", xlim=(0, len(sizes)))
    axis.set_ylim(bottom=0)
    whole_numbers(axis.yaxis)
    axis.set_title(f"{sizes.sum():,} texts on {len(sizes):,} clients", fontsize=9)
    plain([axis])
