"""Rounds as a picture: what each gave, what it cost a client, and how long clients waited."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_client.tables import size
from profiling.canvas import (
    PALETTE,
    accuracy_axis,
    heading,
    legend_below,
    new_figure,
    plain,
    rounds_axis,
    save,
    say,
)
from profiling.rounds.costs import PHASES, RoundCost

WAIT = "wait"
COLOURS = {
    WAIT: "#9aa3ad",
    "download": PALETTE[6],
    "load": PALETTE[4],
    "tokenize": "#c9a86a",
    "cache": "#7d8ca3",
    "label": PALETTE[7],
    "train": PALETTE[0],
    "evaluate": PALETTE[3],
    "encode": "#b59bd6",
    "upload": PALETTE[1],
}
DASHES = ("--", ":", "-.")


def file_title(figures: Path, costs: Sequence[RoundCost]) -> str:
    """What a file of figures says about its run, which is not its base, adapter or machine."""
    last = max((cost.round_index for cost in costs), default=0)
    most = max((cost.clients for cost in costs), default=0)
    day = time.strftime("%Y-%m-%d", time.localtime(figures.stat().st_mtime))
    return f"{figures.name} of {day}: {last} rounds, clients that trained in one: up to {most}"


def draw_rounds(
    costs: Sequence[RoundCost], path: Path, title: str, levels: Sequence[tuple[str, float]] = ()
) -> None:
    """Draw accuracy, computing, waiting and traffic by round as a PNG.

    Args:
        costs: One per round.
        path: The PNG to write.
        title: Above the picture: data, base, adapter, run, date and machine, as far as known.
        levels: Named accuracies to compare with, drawn as dashed lines.
    """
    save(rounds_figure(costs, title, levels), path)


def rounds_figure(
    costs: Sequence[RoundCost], title: str, levels: Sequence[tuple[str, float]] = ()
) -> Any:
    """The picture, unsaved; see `draw_rounds`."""
    peak = max((cost.peak_rss_bytes for cost in costs), default=0)
    figure = new_figure(10.5, 7.2, f"{title}\npeak memory of a client {size(peak)} (VmHWM)")
    (gave, computed), (sent, waited) = figure.subplots(2, 2)
    _accuracy(gave, costs, levels)
    trained = [cost for cost in costs if cost.phases_s or cost.bytes_up]
    phases = [phase for phase in PHASES if phase != WAIT]
    _seconds(computed, trained, phases, "training and labelling: median of each phase over clients")
    _seconds(waited, trained, [WAIT], "waiting for that work: median over clients")
    _traffic(sent, trained)
    for axis in (gave, computed, waited, sent):
        rounds_axis(axis, max((cost.round_index for cost in costs), default=0))
    plain((gave, computed, waited, sent))
    return figure


def _accuracy(axis: Any, costs: Sequence[RoundCost], levels: Sequence[tuple[str, float]]) -> None:
    scored = [(c.round_index, 100 * c.score) for c in costs if c.score is not None]
    word = "F1 of entities" if any(c.f1 is not None for c in costs) else "accuracy"
    axis.plot(
        [index for index, _ in scored],
        [accuracy for _, accuracy in scored],
        color=PALETTE[0],
        marker="o",
        markersize=4,
        label="all devices, one adapter" + (f": {scored[-1][1]:.1f}" if scored else ""),
    )
    for number, (name, level) in enumerate(levels):
        style = {"color": PALETTE[1], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.2}
        axis.axhline(100 * level, **style, label=f"{name}: {100 * level:.1f}")
    accuracy_axis(axis)
    heading(axis, f"what it gave: {word} on the devices' test texts")
    legend_below(axis, columns=3)


def _seconds(axis: Any, costs: Sequence[RoundCost], phases: Sequence[str], said: str) -> None:
    """Bars of phases on each other, in the order of a round; each a median over clients."""
    floor = [0.0] * len(costs)
    for phase in phases:
        seconds = [cost.phases_s.get(phase, 0.0) for cost in costs]
        if any(seconds):
            places = [cost.round_index for cost in costs]
            axis.bar(places, seconds, bottom=floor, color=COLOURS[phase], label=phase)
            floor = [below + more for below, more in zip(floor, seconds, strict=True)]
    axis.set(ylabel="seconds", ylim=(0, 1.05 * max(floor, default=0) or 1))
    heading(axis, said)
    if not any(floor):
        say(axis, "none was measured")
    if len(phases) > 1:
        legend_below(axis, columns=6)


def _traffic(axis: Any, costs: Sequence[RoundCost]) -> None:
    highest = 0
    for offset, name in ((-0.2, "up"), (0.2, "down")):
        counts = [cost.bytes_up if name == "up" else cost.bytes_down for cost in costs]
        shade = COLOURS["upload" if name == "up" else "download"]
        places = [cost.round_index + offset for cost in costs]
        axis.bar(places, [count / 1024 for count in counts], 0.4, color=shade, label=name)
        highest = max(highest, *counts, 0)
    axis.set(ylabel="KiB", ylim=(0, 1.05 * highest / 1024 or 1))
    is_by_kernel = all(cost.is_by_kernel for cost in costs)
    counted = "TCP, by the kernel" if is_by_kernel else "bodies alone"
    heading(axis, f"sent and received ({counted}): median over clients")
    legend_below(axis, columns=2)
