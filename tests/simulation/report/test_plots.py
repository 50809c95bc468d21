from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from smidgen.edge_client.bases.base import Base
from smidgen.simulation.experiments.runner import run_all
from smidgen.simulation.population.deal import Deal
from smidgen.simulation.report.plots import (
    accuracy_figure,
    clients_figure,
    colours_of,
    draw,
    languages_figure,
)
from smidgen.simulation.report.scenario import Cell, Measured, Scenario, measured
from tests.simulation.experiments.test_runner import news, place_in


@pytest.fixture(scope="module")
def found(tiny_base: Base, tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    """Not trained, trained together by silos, and by clients that are no languages; two seeds."""
    silos = news(tiny_base, deal=Deal(by="language", clients=0), rounds=1)
    mixed = replace(silos, deal=Deal(clients=3))
    cells = (
        Cell("zero-shot", "both", replace(silos, rounds=0)),
        Cell("silos", "both", silos),
        Cell("mixed", "both", replace(mixed, rounds=2)),
    )
    chosen, there = (
        Scenario("small", "title", cells, ()),
        place_in(tmp_path_factory.mktemp("found")),
    )
    return measured(chosen, (0, 1), run_all(chosen.experiments((0, 1)), there))


def one_seed(found: Sequence[Measured]) -> list[Measured]:
    return [Measured(item.cell, item.results[:1]) for item in found]


def laid_out(figure: Any) -> Any:
    FigureCanvasAgg(figure).draw()
    return figure


def test_every_axis_is_named_and_shows_the_whole_of_an_accuracy(found: list[Measured]) -> None:
    for make in (accuracy_figure, languages_figure, clients_figure):
        axes = laid_out(make(found, "title")).axes
        assert axes[0].get_ylabel() == "accuracy, %"
        assert all(axis.get_xlabel() and axis.get_ylim() == (0.0, 100.0) for axis in axes)


def test_no_legend_lies_over_data(found: list[Measured]) -> None:
    for make in (accuracy_figure, languages_figure):
        figure = laid_out(make(found, "title"))
        (legend,) = figure.legends
        for axis in figure.axes:
            assert not legend.get_window_extent().overlaps(axis.get_window_extent())
            assert axis.get_legend() is None


def test_rounds_are_whole_numbers(found: list[Measured]) -> None:
    axis = laid_out(accuracy_figure(found, "title")).axes[0]
    assert axis.get_xlabel() == "round"
    assert all(float(tick).is_integer() for tick in axis.get_xticks())


def test_a_spread_is_spoken_of_only_where_there_are_several_seeds(found: list[Measured]) -> None:
    several = accuracy_figure(found, "title").axes[0].get_title("left")
    one = accuracy_figure(one_seed(found), "title").axes[0].get_title("left")
    assert "spread" in several and "spread" not in one


def test_one_curve_is_drawn_once(found: list[Measured]) -> None:
    assert len(accuracy_figure(found, "title").axes) == 3
    assert len(accuracy_figure(found[:2], "title").axes) == 1
    twin = replace(found[1], cell=replace(found[1].cell, row="its twin"))
    assert len(accuracy_figure([found[1], twin], "title").axes) == 1


def test_a_cell_has_one_colour_in_all_pictures(found: list[Measured]) -> None:
    colours = colours_of(found)
    silos = colours["silos, both"]
    lines = {line.get_label(): line for line in accuracy_figure(found, "").axes[0].lines}
    bars = {bar.get_label(): bar for bar in languages_figure(found, "").axes[0].containers}
    panels = {axis.get_title("left"): axis for axis in clients_figure(found, "").axes}
    assert to_hex(lines["silos"].get_color()) == silos
    assert to_hex(bars["silos"].patches[0].get_facecolor()) == silos
    assert to_hex(panels["silos"].patches[0].get_facecolor()) == silos
    assert silos != colours["mixed, both"]


def test_clients_are_bars_with_names_or_ranks(found: list[Measured]) -> None:
    panels = {axis.get_title("left"): axis for axis in clients_figure(found, "title").axes}
    named = [label.get_text() for label in panels["silos"].get_xticklabels()]
    assert named == ["eng", "hau"] and len(panels["silos"].patches) == 2
    heights = [bar.get_height() for bar in panels["mixed"].patches]
    assert len(heights) == 3 and heights == sorted(heights)
    assert "worst to best" in panels["mixed"].get_xlabel()


@pytest.mark.slow
def test_pictures_say_what_they_are_of_and_old_ones_go(
    found: list[Measured], tmp_path: Path
) -> None:
    silos = found[:2]
    assert {path.name for path in draw(found, tmp_path, "title")} == {
        *("accuracy.png", "languages.png", "clients.png")
    }
    assert {path.name for path in draw(silos, tmp_path, "title")} == {
        *("accuracy.png", "languages.png")  # silos are the languages
    }
    assert not (tmp_path / "clients.png").exists()
