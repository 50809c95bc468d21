from pathlib import Path

import pytest

pytest.importorskip("rich")

from profiling.rounds import cost_by_round
from profiling.rounds_report import draw_rounds, rounds_table
from tests.profiling.test_rounds import figure


def test_a_chart_is_drawn_for_a_run_that_only_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    costs = cost_by_round([figure(0, "evaluate", "a", accuracy=0.5)])
    labelled = cost_by_round([figure(1, "label", "a", pseudo_labels=7)])
    draw_rounds(costs, tmp_path / "chart.png", "title", [("alone", 0.4)])
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"
    assert rounds_table(costs).row_count == 1
    assert [len(rounds_table(found).columns) for found in (costs, labelled)] == [8, 10]
