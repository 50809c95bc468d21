from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from profiling.rounds import cost_by_round
from profiling.rounds_picture import draw_rounds
from tests.profiling.test_rounds import figure


def test_a_chart_is_drawn_for_a_run_that_only_evaluated(tmp_path: Path) -> None:
    costs = cost_by_round([figure(0, "evaluate", "a", accuracy=0.5)])
    draw_rounds(costs, tmp_path / "chart.png", "title", [("alone", 0.4)])
    assert (tmp_path / "chart.png").read_bytes()[:4] == b"\x89PNG"
