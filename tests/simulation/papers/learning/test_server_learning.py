"""Methods beside FedAvg on the same texts: what is asked, and rounds to its accuracy."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from edge_client.bases.base import Base
from edge_client.tables import render
from simulation.experiments.experiment import Experiment
from simulation.experiments.result import Result, Row
from simulation.experiments.runner import run_all
from simulation.experiments.scoring import Score, Tally
from simulation.papers.learning.server_learning import (
    BEHIND,
    FEDAVG,
    METHODS,
    SETS,
    best_kept,
    reached,
    server_learning,
    target_table,
)
from simulation.papers.scenario import Cell, Scenario, measured
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


def test_the_best_round_is_chosen_by_some_clients_and_told_by_the_others() -> None:
    def row(index: int, first: int, second: int) -> Row:
        own = {"a": Tally(first, 9), "b": Tally(second, 9)}
        scored = Score(Tally(first + second, 18), None, {}, own, Tally(index, 4))
        return Row("", index, 1, 0, 0, None, 0, 0, 0, 0.0, "sha", index, scored)

    result = Result(Experiment("small", "ag_news"), (row(0, 3, 8), row(1, 7, 5), row(2, 6, 9)))
    assert best_kept(result) == 5 / 9  # and not the 9 of 9 that "a" does not know of
    assert result.balanced == 2 / 4
    unknown = replace(result.rows[0], score=Score(Tally(1, 2), None, {}, {}))
    old = replace(result, rows=(unknown,))
    assert best_kept(old) is None and old.balanced is None


def test_a_target_that_no_round_reaches_is_none(tiny_base: Base, tmp_path: Path) -> None:
    [result] = run_all([news(tiny_base, rounds=1)], place_in(tmp_path))
    assert reached(result, 2.0) is None and reached(result, 0.0) == 0
