"""Adapters of a demo's homes: each on its own messages, beside the one of all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edge_client.personal.choice import Choice, chosen_in
from edge_client.tables import Column, Table, share
from profiling.canvas import PALETTE, accuracy_axis, legend_below, new_figure, plain, save
from simulation.demo.setting import Setting


def choices(setting: Setting, folders: Sequence[Path]) -> dict[str, Choice]:
    """What each home found of its own adapter, by its name.

    Raises:
        AdapterError: One has none; its log says why.
    """
    return {one.name: chosen_in(setting.out / "state" / one.name)[1] for one in folders}


def personal_table(found: Mapping[str, Choice]) -> Table:
    """Each home's accuracy on its own test texts by either adapter, and which one answers."""
    rows = [
        [name, str(one.test_examples), *map(share, _both(one)), one.use]
        for name, one in found.items()
    ]
    columns = [Column("home", "word"), Column("test texts"), Column("shared"), Column("personal")]
    return Table(
        [*columns, Column("answers", "word")],
        rows,
        "each home on its own test texts: the adapter of all, and its own",
        ["personal: trained on from the shared one, as far as texts kept aside said; the better"],
    )


def draw_personal(found: Mapping[str, Choice], path: Path, title: str) -> None:
    """Draw that as a PNG.

    Args:
        found: By home.
        path: The PNG to write.
        title: Above the picture.

    Raises:
        Failed: It cannot be written.
    """
    figure = new_figure(7, 3.4, title)
    axes = figure.subplots()
    for place, kind in enumerate(("shared", "personal")):
        heights = [100 * _both(one)[place] for one in found.values()]
        at = [number + 0.4 * (place - 0.5) for number in range(len(found))]
        axes.bar(at, heights, width=0.38, color=PALETTE[place], label=kind)
        for left, height in zip(at, heights, strict=True):
            axes.annotate(f"{height:.0f}", (left, height), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(found)), list(found))
    accuracy_axis(axes)
    plain([axes])
    legend_below(axes, 2)
    save(figure, path)


def _both(one: Choice) -> tuple[float, float]:
    nan = float("nan")
    shared, personal = one.accuracy_shared, one.accuracy
    return nan if shared is None else shared, nan if personal is None else personal
