"""Codecs on the same texts: what is asked, what is sent, and what an interval says."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from edge_client.bases.base import Base
from edge_client.tables import render
from edge_client.updates.settings import Updates
from simulation.experiments.runner import run_all
from simulation.papers.learning.traffic_accuracy import (
    CODECS,
    traffic_accuracy,
    traffic_table,
    within,
)
from simulation.papers.scenario import Cell, Scenario, measured
from tests.simulation.experiments.test_runner import news, place_in

SEEDS = (0, 1)


def test_every_codec_is_asked_and_nothing_else_differs() -> None:
    cells = traffic_accuracy("embedded", quick=False).cells
    assert [cell.experiment.updates.up for cell in cells] == list(CODECS)
    assert len({str(replace(cell.experiment, updates=Updates())) for cell in cells}) == 1
    fewer = traffic_accuracy("embedded", True, ["int4"]).cells
    assert [cell.row for cell in fewer] == ["float32", "int4"]
    both = traffic_accuracy("embedded", True, ["int4"], has_down=True)
    assert [(cell.row, cell.column) for cell in both.cells][1:] == [
        ("int4", "up"),
        ("int4", "both"),
    ]
    assert both.cells[-1].experiment.updates == Updates("int4", "int4")
    assert both.notes[-1].startswith("both: ")


def test_differences_are_paired_by_seed_beside_the_bytes_that_were_sent(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = news(tiny_base, rounds=2)
    cells = [Cell(row, "up", replace(plain, updates=Updates(row))) for row in CODECS]
    cells.append(Cell("int4", "both", replace(plain, updates=Updates("int4", "int4"))))
    chosen = Scenario("small", "title", tuple(cells), ())
    found = measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), place_in(tmp_path)))
    table, told = traffic_table(found)
    assert told[0]["difference_by_seed"] == [0.0, 0.0] and told[0]["is_within"] == "yes"
    assert told[0]["share_up"] == told[0]["share_down"] == 1.0
    shares = [one["share_up"] for one in told]
    assert shares[:4] == sorted(shares[:4], reverse=True) and shares[1] < 0.35  # tiny adapter
    assert shares[4] == shares[2]
    assert [one["share_down"] for one in told[:4]] == [1.0] * 4 and told[4]["share_down"] < 1.0
    for one, item in zip(told, found, strict=True):
        pairs = zip(item.results, found[0].results, strict=True)
        assert one["difference_by_seed"] == [a.accuracy - b.accuracy for a, b in pairs]
    assert "topk:0.01" in render(table)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((-0.004, 0.02), "yes"),
        ((-0.006, 0.02), "not shown"),
        ((-0.02, -0.006), "no"),
        ((-math.inf, math.inf), "not shown"),
    ],
)
def test_half_a_point_counts_as_shown_only_where_the_interval_allows(
    ends: tuple[float, float], said: str
) -> None:
    assert within(*ends) == said
