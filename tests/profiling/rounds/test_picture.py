from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from smidgen.profiling.rounds.costs import cost_by_round
from smidgen.profiling.rounds.picture import draw_rounds, file_title, rounds_figure
from tests.profiling.rounds.test_costs import figure

SECONDS = {"wait": 90.0, "load": 1.0, "train": 4.0}
LEVELS = [("zero-shot", 0.25), ("alone", 0.4)]


def trained(*rounds: int) -> list[dict[str, Any]]:
    """Figures of two devices, one of which fails in every round."""
    costs = {"phases_s": SECONDS, "bytes_up": 100_000, "bytes_down": 101_000}
    found = [figure(0, "evaluate", "a", accuracy=0.25)]
    for index in rounds:
        found.append(figure(index, "evaluate", "a", accuracy=0.5))
        found.append(figure(index, "train", "a", **costs))
        found.append(figure(index, "train", "b", outcome="failed"))
    return found


def drawn(rounds: tuple[int, ...] = (1, 2)) -> Any:
    """A picture as it is laid out."""
    picture = rounds_figure(cost_by_round(trained(*rounds)), "a title", LEVELS)
    FigureCanvasAgg(picture).draw()
    return picture


@pytest.mark.slow
def test_a_chart_is_drawn_for_a_run_that_only_evaluated(tmp_path: Path) -> None:
    costs = cost_by_round([figure(0, "evaluate", "a", accuracy=0.5)])
    draw_rounds(costs, tmp_path / "chart.png", "title", [("alone", 0.4)])
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"


def test_no_legend_lies_over_data() -> None:
    picture = drawn()
    legends = [axis.get_legend() for axis in picture.axes if axis.get_legend()]
    assert len(legends) == 3
    for legend in legends:
        for axis in picture.axes:
            assert not legend.get_window_extent().overlaps(axis.get_window_extent())


@pytest.mark.few(1)
@pytest.mark.parametrize("rounds", [(1, 2), ()])
def test_rounds_are_whole_and_every_axis_begins_at_zero(rounds: tuple[int, ...]) -> None:
    for axis in drawn(rounds).axes:
        assert axis.get_xlabel() == "round" and axis.get_ylabel()
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
        assert axis.get_ylim()[0] == 0.0


def test_waiting_stands_apart_from_work() -> None:
    panels = {axis.get_title("left").split(":")[0]: axis for axis in drawn().axes}
    heights = {
        name: max((bar.get_y() + bar.get_height() for bar in panel.patches), default=0)
        for name, panel in panels.items()
    }
    assert heights["training and labelling"] == 5.0
    assert heights["waiting for that work"] == 90.0


def test_bytes_are_told_as_in_the_tables() -> None:
    picture = drawn()
    assert "KiB" in [axis.get_ylabel() for axis in picture.axes]
    bars = next(axis for axis in picture.axes if axis.get_ylabel() == "KiB").patches
    assert max(bar.get_height() for bar in bars) == 101_000 / 1024
    told = " ".join(text.get_text() for text in picture.findobj(Text))
    assert "peak memory of a client" in told and "MB" not in told and "kB" not in told


def test_a_file_of_figures_is_named_with_what_it_tells(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("")
    title = file_title(path, cost_by_round(trained(1, 2, 3)))
    assert title.startswith("mine.jsonl of 20")
    assert title.endswith(": 3 rounds, clients that trained in one: up to 1")
