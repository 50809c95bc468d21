"""Methods beside FedAvg on the same texts: what is asked, and rounds to its accuracy."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from edge_client.bases.base import Base
from edge_client.tables import render
from simulation.experiments.runner import run_all
from simulation.papers.scenario import Cell, Scenario, measured
from simulation.papers.server_learning import (
    BEHIND,
    FEDAVG,
    METHODS,
    SETS,
    reached,
    server_learning,
    target_table,
)
from tests.simulation.experiments.test_runner import news, place_in

SEEDS = (0, 1)


def test_every_method_is_asked_on_every_split_of_every_set() -> None:
    cells = server_learning("embedded", quick=False).cells
    assert len(cells) == len(METHODS) * len(SETS) * 3
    assert len({(cell.row, cell.column) for cell in cells}) == len(cells)
    fewer = server_learning("embedded", True, ["ag_news"], ["SCAFFOLD"]).cells
    assert {cell.row for cell in fewer} == {FEDAVG, "SCAFFOLD"}
    assert all(cell.experiment.dataset == "ag_news" for cell in fewer)


def test_rounds_to_fedavgs_accuracy_are_told_beside_differences_by_seed(
    tiny_base: Base, tmp_path: Path
) -> None:
    plain = news(tiny_base, rounds=2)
    cells = [
        Cell(
            row,
            "even",
            replace(
                plain,
                training=replace(plain.training, **METHODS[row].training),
                learning=METHODS[row].learning,
            ),
        )
        for row in (FEDAVG, "FedAdam", "SCAFFOLD")
    ]
    chosen = Scenario("small", "title", tuple(cells), ())
    found = measured(chosen, SEEDS, run_all(chosen.experiments(SEEDS), place_in(tmp_path)))
    table, told = target_table(found)
    assert [one["method"] for one in told] == [FEDAVG, "FedAdam", "SCAFFOLD"]
    target = found[0].accuracy()[0] - BEHIND
    assert all(one["target"] == target for one in told)
    assert told[0]["difference_by_seed"] == [0.0, 0.0]
    for one, item in zip(told, found, strict=True):
        assert one["rounds_by_seed"] == [reached(result, target) for result in item.results]
    assert "FedAdam" in render(table)
    # SCAFFOLD's devices send no more than others and receive the control variate too.
    assert told[2]["bytes_down"] > told[0]["bytes_down"]


def test_a_target_that_no_round_reaches_is_none(tiny_base: Base, tmp_path: Path) -> None:
    [result] = run_all([news(tiny_base, rounds=1)], place_in(tmp_path))
    assert reached(result, 2.0) is None and reached(result, 0.0) == 0
