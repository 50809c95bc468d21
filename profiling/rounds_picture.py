"""Rounds as a picture: what each gave, and what it cost a client."""

from collections.abc import Sequence
from pathlib import Path

from profiling.rounds import PHASES, RoundCost

COLOURS = {
    "wait": "#c9ced6",
    "download": "#7fb3d5",
    "load": "#b39ddb",
    "label": "#8d9f4f",
    "train": "#2e7d6b",
    "evaluate": "#e0b04c",
    "upload": "#d1603d",
}


def draw_rounds(
    costs: Sequence[RoundCost], path: Path, title: str, levels: Sequence[tuple[str, float]] = ()
) -> None:
    """Draw accuracy, seconds by phase and traffic by round as a PNG.

    Args:
        costs: One per round.
        path: The PNG to write.
        title: Above the chart.
        levels: Named accuracies to compare with, drawn as dashed lines.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 3.8), dpi=110)
    scored = [cost for cost in costs if cost.accuracy is not None]
    left.plot(
        [cost.round_index for cost in scored],
        [100 * (cost.accuracy or 0.0) for cost in scored],
        color=COLOURS["train"],
        marker="o",
        label="all devices, one adapter",
    )
    for name, level in levels:
        left.axhline(100 * level, color=COLOURS["upload"], linestyle="--", linewidth=1)
        left.annotate(name, (0, 100 * level), xytext=(2, 3), textcoords="offset points", fontsize=8)
    left.set(xlabel="round", ylabel="accuracy on the devices' test texts, %", ylim=(0, 100))
    left.legend(loc="lower right", fontsize=8)
    trained = [cost for cost in costs if cost.clients]
    indices = [cost.round_index for cost in trained]
    floor = [0.0] * len(trained)
    for phase in PHASES:
        seconds = [cost.phases_s.get(phase, 0.0) for cost in trained]
        if any(seconds):
            middle.bar(indices, seconds, bottom=floor, color=COLOURS[phase], label=phase)
            floor = [below + more for below, more in zip(floor, seconds, strict=True)]
    middle.set(xlabel="round", ylabel="seconds per client (median)")
    if trained:
        middle.legend(fontsize=8)
    for offset, name, counts in (
        (-0.2, "up", [cost.bytes_up for cost in trained]),
        (0.2, "down", [cost.bytes_down for cost in trained]),
    ):
        places = [index + offset for index in indices]
        colour = COLOURS["upload" if name == "up" else "download"]
        right.bar(places, [count / 1000 for count in counts], 0.4, color=colour, label=name)
    right.set(xlabel="round", ylabel="kB per client, bodies and headers (median)")
    right.legend(fontsize=8)
    peak = max((cost.peak_rss_bytes for cost in costs), default=0)
    figure.suptitle(f"{title}; a client's peak RSS {peak / 1e6:.0f} MB", fontsize=11)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
