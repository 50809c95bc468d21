import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from simulation.experiments.experiment import Experiment, ExperimentError
from simulation.papers.learning.mixed_ranks import METHODS, RANKS, mixed_ranks


def test_every_method_is_asked_on_even_and_on_skewed_labels() -> None:
    cells = mixed_ranks("embedded", quick=False).cells
    assert [cell.row for cell in cells[::2]] == list(METHODS)
    assert {cell.experiment.deal.alpha for cell in cells} == {math.inf, 0.5}
    assert {cell.experiment.ranks for cell in cells if "4/8/16" in cell.row} == {RANKS}


def test_ranks_need_a_mean_that_knows_them() -> None:
    with pytest.raises(ExperimentError, match="lora_mean `product`"):
        Experiment("e", "ag_news", ranks=(4, 8))
    cell = mixed_ranks("embedded", quick=True).cells[4]
    with pytest.raises(ExperimentError, match="ranks: 1 to 16"):
        replace(cell.experiment, ranks=(4, 32))
