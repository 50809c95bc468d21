"""One round as a picture: a bar per device and step, and where its memory peak came from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_client.tables import seconds, size
from profiling.canvas import INK, PALE, SMALL, heading, new_figure, plain, save
from profiling.rounds.costs import PHASES
from profiling.rounds.picture import COLOURS
from profiling.rounds.waterfall import WAIT, Piece, Step

MOST = 40  # devices of a step
WAITED_MOST = 0.25  # of the longest work; a longer wait is cut
BAR = 0.7
SHADE = 0.6


def draw_waterfall(steps: Sequence[Step], path: Path, title: str) -> None:
    """Draw a round's steps below each other.

    Args:
        steps: Of one round.
        path: File to write; its name says the format.
        title: Above the picture.
    """
    save(waterfall_figure(steps, title), path)


def waterfall_figure(steps: Sequence[Step], title: str) -> Any:
    """The picture, unsaved; see `draw_waterfall`."""
    counts = [min(MOST, len(step.pieces)) for step in steps]
    figure = new_figure(10.5, 1.5 + sum(0.9 + 0.3 * count for count in counts), title)
    heights = [3 + count for count in counts]
    grid = figure.subplots(
        len(steps), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 1), sharey="row"
    )
    for step, (times, memory) in zip(steps, grid, strict=True):
        _times(times, step)
        _memory(memory, step)
        plain((times, memory))
    _legend(figure, steps)
    return figure


def _times(axis: Any, step: Step) -> None:
    pieces = step.pieces[:MOST]
    longest_s = max(piece.work_s for piece in pieces) or 1.0
    for place, piece in enumerate(pieces):
        _wait(axis, place, piece, WAITED_MOST * longest_s)
        start_s = 0.0
        for name, spent_s in piece.phases_s.items():
            axis.barh(place, spent_s, BAR, left=start_s, color=COLOURS[name], **_look(piece))
            start_s += spent_s
        mark = _mark(piece)
        axis.text(start_s, place, f"  {seconds(start_s)}{mark}", va="center", fontsize=SMALL)
    _behind(axis, step)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set(xlim=(-1.05 * WAITED_MOST * longest_s, 1.3 * longest_s))
    axis.set(xlabel="seconds since the device was given its work; left of 0: waited")
    axis.set(ylim=(len(pieces) - 0.4, -0.6))
    axis.set_yticks(range(len(pieces)), [piece.device_id for piece in pieces])
    more = len(step.pieces) - len(pieces)
    heading(axis, step.title + (f" (the slowest {MOST}; {more} more)" if more else ""))


def _wait(axis: Any, place: int, piece: Piece, most_s: float) -> None:
    shown_s = min(piece.wait_s, most_s)
    axis.barh(place, -shown_s, BAR, color=COLOURS[WAIT])
    if piece.wait_s > most_s:
        said = f"{seconds(piece.wait_s)} "
        axis.text(0, place, said, va="center", ha="right", fontsize=SMALL - 1, color="white")


def _look(piece: Piece) -> dict[str, Any]:
    """Work that gave nothing is hatched."""
    is_lost = piece.outcome != "done" or piece.is_late
    return {"hatch": "////", "edgecolor": "white", "linewidth": 0} if is_lost else {}


def _mark(piece: Piece) -> str:
    if piece.outcome != "done":
        return f", failed: {piece.failure}" if piece.failure else ", failed"
    return ", late" if piece.is_late else ""


def _behind(axis: Any, step: Step) -> None:
    """A shaded span from the second slowest to the slowest: what the others waited."""
    straggler = step.straggler()
    if straggler is None:
        return
    next_s = straggler.work_s - straggler.behind_s
    axis.axvspan(next_s, straggler.work_s, color=PALE, alpha=SHADE, linewidth=0, zorder=0)


def _memory(axis: Any, step: Step) -> None:
    """Peaks, each in the colour of the phase that it was reached in."""
    pieces = step.pieces[:MOST]
    for place, piece in enumerate(pieces):
        shade = COLOURS[piece.peak_phase] if piece.peak_phase else PALE
        mebibytes = piece.peak_rss_bytes / (1 << 20)
        axis.barh(place, mebibytes, BAR, color=shade)
        said = f"  {size(piece.peak_rss_bytes)}" + (
            "" if piece.is_peak_of_work else " (of its life)"
        )
        axis.text(mebibytes, place, said, va="center", fontsize=SMALL)
    highest = max(piece.peak_rss_bytes for piece in pieces) / (1 << 20)
    axis.set(xlabel="MiB (VmHWM)", xlim=(0, 1.6 * highest or 1))
    axis.tick_params(labelleft=False)
    heading(axis, "memory peak, and its phase")


def _legend(figure: Any, steps: Sequence[Step]) -> None:
    """One colour per phase that occurs."""
    from matplotlib.patches import Patch

    seen = {name for step in steps for piece in step.pieces for name in piece.phases_s}
    parts = [Patch(color=COLOURS[name], label=name) for name in PHASES if name in {WAIT, *seen}]
    pieces = [piece for step in steps for piece in step.pieces]
    if any(step.straggler() for step in steps):
        parts.append(Patch(color=PALE, alpha=SHADE, label="waited for the straggler"))
    if any(piece.outcome != "done" or piece.is_late for piece in pieces):
        said = "failed or late: nothing came of it"
        parts.append(Patch(facecolor=INK, hatch="////", edgecolor="white", linewidth=0, label=said))
    place = "outside lower center"
    figure.legend(handles=parts, loc=place, ncols=7, fontsize=SMALL, frameon=False)
