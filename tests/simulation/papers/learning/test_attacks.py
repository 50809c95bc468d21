from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from simulation.experiments.runner import Place, run_all
from simulation.papers.learning.attacks import FORGED, MEANS, aggregations, write_messages
from tests.command_line import smidgen


def test_every_mean_meets_every_forged_update_and_nobody_else_resists(tmp_path: Path) -> None:
    cells = aggregations(tmp_path, "embedded").cells
    assert {(cell.row, cell.column) for cell in cells} == {(a, m) for a in FORGED for m in MEANS}
    for cell in cells:
        one = cell.experiment
        assert one.learning.mean == cell.column
        assert not one.is_guarded and one.norm_bound == one.max_examples == 0


def test_attacks_of_its_own_and_by_mean_are_two_questions() -> None:
    done = smidgen("simulate", "attacks", "--by-mean", "--attack", "noise")
    assert done.exit_code == 2 and "leave --attack out" in done.stderr


@pytest.mark.slow
def test_a_median_of_real_updates_outlives_two_that_are_scaled(tmp_path: Path) -> None:
    folder = write_messages(tmp_path / "messages")
    chosen = {
        (cell.row, cell.column): cell.experiment for cell in aggregations(folder, "embedded").cells
    }
    asked = [
        replace(chosen["scaled", mean], rounds=1, test_texts=60) for mean in ("fedavg", "median")
    ]
    spoilt, sound = run_all(asked, Place(None, tmp_path / "out"))
    assert sound.accuracy >= spoilt.accuracy
    assert all(not row.trouble for row in sound.rows)
